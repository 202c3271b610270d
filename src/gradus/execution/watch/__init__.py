"""Observing steps without changing them.

Read in this order:

    timeline.py    when each step was planned, run and committed
    recording.py   plans written to a file, and played back
"""
