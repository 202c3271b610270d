"""The live X-ray over HTTP.

stream.py    a watcher's events, as server-sent events
routes.py    GET /xray and GET /xray/trace
"""
