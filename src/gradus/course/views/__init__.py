"""Views of a phase: in which order to read it, what it changed, all of it in one file, and its effect in a minute.

Read in this order:

    reading.py      the order in which a lesson reads its files
    difference.py   what a phase changed
    flat.py         a phase as one file that runs
    forms.py        an answer without a form and with it, token by token
    demos.py        a phase and the one before it on a small workload;  charts.py: their chart

No torch here.
"""
