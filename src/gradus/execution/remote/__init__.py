"""A runner in another process: the engine's plans go there through a socket, and results come back. No torch here.

docs/design/remote.md is the specification. Read in this order:

    messages.py       the messages, their limits, and the greeting in which both sides agree on them
    stream.py         frames over a Unix socket
    plan_check.py     a plan's numbers, checked on arrival;  result_check.py: a result's
    runner.py         the engine's side
    service.py        the runner's side
"""
