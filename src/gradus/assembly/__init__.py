"""Engines put together.

Read in this order:

    final.py        the final engine, composed by its switches
    guard.py        a lack of memory, said in one line
    checkpoint.py   a model loaded, and its engine built
"""
