"""The lesson's second half: latency against load, predicted, simulated and measured. Read in this order:

    records.py     one request's times
    simulator.py   a server in virtual time: slots, a queue, and steps that take as long as a formula says
    formulas.py    the same server on the back of an envelope
    loads.py       requests to send: an open loop and a closed one
    goodput.py     how many requests per second are good
    knee.py        the highest rate that keeps an objective, found with a noisy probe
    router.py      which of several replicas gets a request
    replicas.py    requests, a router and two simulated servers
    exercise.py    what the student writes of these

`python -m phases.p13_serving.load` prints the curves. No torch and no HTTP here.
"""
