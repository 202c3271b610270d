"""p13's figures: the two sides of a server, the way of a request, many streams, and a blocked event loop.

Read in this order:

    recorded.py   measurements of the server, as the script in `benchmarks` has kept them
    sides.py      the event loop and the engine's thread, and what passes between them
    way.py        two requests on their way, on one axis of time
    streams.py    tokens per second and times to the first token, by the number of streams
    blocked.py    the gaps of three streams while a long prompt is encoded
"""
