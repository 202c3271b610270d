"""Engines put together.

Read in this order:

    final.py        the final engine, composed by its switches
    draft_rows.py   a draft model in the model's size
    heads.py        trained heads, where they draft
    start_up.py     kernels compiled and steps captured, on a GPU
    guard.py        a lack of memory, said in one line
    rehearsal.py    a crowd served before the first request
    checkpoint.py   a model loaded, and its engine built
"""
