"""Which sequences run, and how many tokens of each: admission, order, preemption. No torch here.

Read in this order:

    scheduler.py   the final engine's scheduler: it decides
    columns.py     steady decodes, advanced a whole step at a time: nothing is decided there
    bounds.py      the same where only the device knows how far they are;  drafting.py: how many drafts a step verifies
    queue.py       the waiting line
"""
