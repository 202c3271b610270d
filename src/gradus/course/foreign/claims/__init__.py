"""The promises of each phase, one function each, named after it: it drives an engine, and raises Broken with a case.

An engine that has come further passes the earlier phases' claims too: a setting that is off asks nothing of it. Read in
this order:

    first.py       p00 and p01: the oracle's tokens, and each position computed once
    batches.py     p02 and p03: together in a step, and joined or left at every step
    paging.py      p04: pages as they are needed, and preemption when there are none left
    prefixes.py    p05: computed pages are found again
    chunks.py      p06: a budget of tokens per step
    bits.py        p07: weights in 8 and 4 bits
    guesses.py     p08: drafts
    streams.py     p13: answers over HTTP, as they are written
"""
