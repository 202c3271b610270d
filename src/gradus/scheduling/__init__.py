"""Admission, order and preemption: which sequences run, and how many tokens of each. No torch here.

Read in this order:

    scheduler.py      the final engine's scheduler: it decides
    columns.py        decoding sequences, advanced a whole step at a time: it decides nothing
    draft_shapes.py   the shapes of steps that verify drafts
    passing.py        which prompts may pass a long one
    step_target.py    how long a step may last that several sequences share, and which ones a long prompt sits out
    step_times.py     how long steps with drafts take
    hindsight.py      what drafts from the text would have gained
    draft_gains.py    the arithmetic: how likely drafts are accepted, and what a step with drafts is worth
    drafting.py       how many drafts each sequence verifies
    queue.py          the waiting queue
"""
