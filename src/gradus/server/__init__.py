"""The HTTP server: a front end on the event loop, and one engine in a process of its own.

    HTTP ── http, api ── client (with text.FrontEnd) ── engine: link ── messages ── loop ── core

Text and HTTP are on one side, token ids on the other. Only plain data passes between them. (The engine of a phase of
the course runs on a thread, behind the same messages.) Read in this order:

    addresses.py       hosts and origins, as settings and requests name them
    config.py          the server's settings, checked                        (imports neither torch nor FastAPI)
    logs.py            one log format for both processes
    failures.py        why a request gets no answer
    measures.py        counts and rates: the server's, and those of one body's requests
    engine/            the engine's side: messages, the loop that owns it, and where that loop runs
    results.py         results as they arrive, or the error that ended them
    exchange.py        what a protocol asks of the engine, and how it answers a client
    limits.py          the limits of one body, whatever its protocol
    samples.py         the running samples: reports of the engine become text
    metrics/           measurements of requests, and /metrics
    encoding.py        slow work on texts: turns by key, bounds
    supervisor.py      the engine's life: progress, failures, another start
    xray/              the live X-ray: the engine's state, for clients that watch
    writing/           a step's tokens on their way to hundreds of connections, in a process of its own
    client.py          the front end's side: queue, text, cancellation, drain
    api/               the protocols: a body becomes requests, their results become an answer
    page/              the page at /: a chat, for browsers
    traces/            a span for each request, with --otlp-traces-endpoint
    models/            several models behind one port, by name
    http/              untrusted bytes, origins, keys, streams and disconnects, and the routes
    notify.py          systemd's protocol: ready, alive, what the server does now
    serve.py           the process: socket, signals, exit codes
"""
