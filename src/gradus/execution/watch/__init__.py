"""What steps do, for whoever looks on.

Read in this order:

    timeline.py    when each step did what
    recording.py   plans written to a file, and played back
"""
