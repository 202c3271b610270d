"""Pages of the prefix index on disk: a prefix that was read once is warm after a restart. No torch here.

The index decides what is kept together; this tier names pages, and moves their bytes outside of steps. Read:

    folder.py   the directory: its files, their checks, and which of them go when it is full
    names.py    a page's name: a hash of everything that its keys and values depend on
    tier.py     what a step hands over, the thread that reads and writes, and pages on their way back
"""
