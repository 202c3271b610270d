"""A server that is left alone under changing load, and what must still hold at the end: `make soak`.

Read in this order. Each part imports only parts above it:

    endings.py     what a whole answer of each protocol ends with
    requests.py    the requests: many kinds, some malformed, some left by their clients
    client.py      one client: sends a request, reads or leaves its answer, and says what was wrong with it
    observed.py    what is seen of the server: memory, descriptors, threads, and its own counts
    loads.py       one cycle of loads: few users and many, arrivals at random, bursts, rest
    checks.py      what must hold, as verdicts
    __main__.py    the run
"""
