"""A file of requests, answered to a file: OpenAI's batches, against any server.

lines.py      the lines of both files, and how an unfinished output goes on
sending.py    requests to a server, several at a time, repeated where it has no room
"""
