"""The HTTP server: a front end on the event loop, and one engine on a thread of its own.

    HTTP ── app, schemas ── client (with text.FrontEnd) ── messages ── engine_loop ── core

Text and HTTP are on one side, token ids on the other. Between the two passes plain data, so that the engine can move to
a process of its own. Read in this order:

    config.py          what a server can be told, checked                    (imports neither torch nor FastAPI)
    hosts.py           which requests are this server's own: Host, Origin and Sec-Fetch-Site
    body.py            bytes from a stranger → strict JSON, within limits
    schemas.py         JSON → a checked request; completions and errors → JSON; the OpenAPI schema
    messages.py        what crosses between the two sides: commands, reports, failures
    engine_loop.py     the loop that owns the engine: take commands, step, report
    engine_thread.py   that loop on a thread
    loading.py         from a configuration to a tokenizer and an engine
    results.py         what a request waits for: its results as they come, or the error that ended it
    measures.py        what the front end's side measures: rates, totals, the engine's silence
    client.py          the front end's side: queue, text, cancellation, drain, health
    streaming.py       server-sent events, and what to do about clients that leave or stop reading
    app.py             the routes
    serve.py           the process: socket, signals, exit codes
"""
