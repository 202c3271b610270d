"""Which sequences run, and how many tokens of each: admission, order, preemption. No torch here.

Read in this order:

    scheduler.py   the final engine's scheduler: it decides
    columns.py     steady decodes, advanced a whole step at a time: nothing is decided there
    queue.py       the waiting line
"""
