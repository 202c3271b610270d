"""The HTTP server: a front end on the event loop, and one engine on a thread of its own.

    HTTP ── app, schemas ── client (with text.FrontEnd) ── messages ── engine_loop ── core

Text and HTTP are on one side, token ids on the other. Only plain data passes between them, so the engine could move to
a separate process. Read in this order:

    config.py          the server's settings, checked                        (imports neither torch nor FastAPI)
    hosts.py           checks of a request's origin: Host, Origin and Sec-Fetch-Site
    body.py            untrusted bytes → strict JSON, within limits
    schemas.py         JSON → a checked request; completions and errors → JSON; the OpenAPI schema
    messages.py        messages between the two sides: commands, reports, failures
    engine_loop.py     the loop that owns the engine: take commands, step, report
    engine_thread.py   that loop on a thread
    loading.py         a configuration → a tokenizer and an engine
    results.py         a request's results as they arrive, or the error that ended it
    measures.py        measurements of the front end's side: rates, totals, the engine's silence
    client.py          the front end's side: queue, text, cancellation, drain, health
    streaming.py       server-sent events, and clients that leave or stop reading
    app.py             the routes
    serve.py           the process: socket, signals, exit codes
"""
