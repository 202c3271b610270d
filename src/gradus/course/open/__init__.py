"""Open tasks: one for each phase, with a goal and a meter, and without a solution anywhere in the repository.

A phase declares its task in a module of its own, `open`. The reader's file begins as the phase's own parts, unchanged,
which score 1.00; it is measured against that beginning, in the same process and on the same workloads. Read in this
order:

    declaration.py   what a task is, and what its trial returns
    guard.py         notices a file that changes the engine or the meter
    meter.py         counts rows and bytes below torch, outside of the reader's code
    workload.py      requests from a seed, run by the reader's engine, every token verified
    judge.py         trials in turns, in a process of their own
    attempt.py       the reader's side: the file to begin with, and the judge's process
    report.py        the lines that a check prints

Only the meter, the workload and the judge import torch.
"""
