"""`gradus doctor`: what works on this machine, and whether a model would load.

Read in this order:

    finding.py   a check's result
    machine.py   the machine: every check really runs
    model.py     a model, by its configuration alone
"""
