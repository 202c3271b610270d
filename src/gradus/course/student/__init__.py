"""A student's work: judged by the tests that the reference passes, kept count of, and shown next to ours.

Read in this order:

    check.py       the phase's own tests against the student's file, and one sentence about what is wrong
    progress.py    what a student has passed, and what comes next
    ladder.py      the best attempts at open tasks
    solved.py      a student's functions next to ours

No torch here.
"""
