"""The HTTP server: a front end on the event loop, and one engine apart from it.

    HTTP ── http/, api/ ── client (with text.FrontEnd) ── engine/: messages ── loop ── core

Text and HTTP are on one side, token ids on the other. Only plain data passes between them. Read in this order:

    config.py          the server's settings, checked                        (imports neither torch nor FastAPI)
    engine/            the engine's side: messages, the loop that owns it, and where that loop runs
    results.py         results as they arrive, or the error that ended them
    measures.py        measurements of the front end's side: rates, totals, the engine's silence
    client.py          the front end's side: queue, text, cancellation, drain, health
    api/               the protocols: a body becomes requests, their results become an answer
    http/              untrusted bytes, origins, streams that clients leave, and the routes
    serve.py           the process: socket, signals, exit codes
"""
