"""Commands that ask a server which runs.

load.py     a load, and how much of it the server kept up with
batch.py    a file of requests
"""
