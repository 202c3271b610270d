"""Runs of several workers on one axis of time: p12's ranks, and p13's clients, event loop and engine.

Read in this order:

    recording.py   such a run, as the page draws it
    ranks.py       p12: what ranks compute and exchange, on a clock that counts weights
    messages.py    p13: the way of a request through the server, as the lesson has recorded it
"""
