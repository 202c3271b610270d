"""Engines put together.

Read in this order:

    final.py        the final engine, composed by its switches
    rehearsal.py    requests that no client sent, before the first real one
    guard.py        a lack of memory, said in one line
    rehearsal.py    a crowd served before the first request
    checkpoint.py   a model loaded, and its engine built
"""
