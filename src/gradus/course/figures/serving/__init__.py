"""p13's figures: the two sides of a server, the way of a request, many streams, a blocked event loop, and load.

Read in this order:

    recorded.py   measurements of the server, as the script in `benchmarks` has kept them
    sides.py      the event loop and the engine's thread, and what passes between them
    way.py        two requests on their way, on one axis of time
    streams.py    tokens per second and times to the first token, by the number of streams
    blocked.py    the gaps of three streams while a long prompt is encoded
    load.py       measurements under load, and p13's predictions
    curve.py      latency against load, predicted and measured
    loops.py      an open loop and a closed one
    steps.py      the steps around a long prompt
    replicas.py   hits and latency behind a router, by the imbalance that it allows
"""
