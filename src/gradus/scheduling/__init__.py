"""Which sequences run, and how many tokens of each: admission, order, preemption, time limits. No torch here.

Read batching.py first (the scheduler), then queue.py (the line of waiting sequences) and deadlines.py (time limits).
"""
