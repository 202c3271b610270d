"""The HTTP server: one engine, one thread that runs it, one event loop that talks to everybody else.

config.py         what a server can be told, checked                    (imports neither torch nor FastAPI)
body.py           bytes from a stranger → strict JSON, within limits
schemas.py        JSON → a checked request; completions and errors → JSON; the OpenAPI schema
results.py        what a request waits for: its results as they come, or the error that ended it
engine_thread.py  the thread that owns the engine: commands in, reports out
client.py         the event loop's side of it: queue, time limits, cancellation, drain, health
streaming.py      server-sent events, and what to do about clients that leave or stop reading
app.py            the routes
serve.py          the process: socket, signals, exit codes
"""
