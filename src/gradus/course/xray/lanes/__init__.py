"""Runs of several workers on one axis of time: p12's ranks, and p13's clients, event loop and engine.

Read in this order:

    recording.py   such a run, as the page draws it
    ranks.py       p12: what ranks compute and exchange, on a clock that counts weights
    way.py         p13's recorded run: two requests on their way through the server
    messages.py    p13: its messages, one by one
"""
