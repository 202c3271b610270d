"""Clients that keep a server busy and cost little themselves.

routes.py     how a request is written, and which events of its stream hold tokens
wire.py       an HTTP response read as bytes, and the connection that asks
target.py     the server: whose it is, its key, its model
clients.py    processes that send jobs when they are due, or as soon as others end
"""
