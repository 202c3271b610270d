"""The speedrun: one fixed workload, every token judged, and a log that checks itself. docs/speedrun.md has the rules.

Read in this order:

    rules.py        the rules in numbers: model, seed, classes, how far a token may be from the best
    text.py         the text that prompts are made of
    workload.py     the requests, from a seed
    oracle.py       the judge: the model in float32, over every answer
    log.py          what a run leaves: the log, its seal, and what can be checked without a model
    neighbors.py    how busy other processes were
    contestants.py  engines that run the workload: ours, yours, and a peer
    run.py          a whole measurement: load, warm up, time, judge
    verify.py       a log read back: everything recomputed that can be
    table.py        the rows of docs/speedrun.md

log.py and table.py need no torch.
"""
