"""Whole runs: a benchmark from its declaration to its results, a block in its own process, a profile.

Read in this order:

    suite.py           every cell of a benchmark predicted, measured and written down
    progress.py        how far it is, on stderr
    block.py           one engine's block of a comparison, in a process of its own
    blocks.py          blocks of several engines, in turns
    script.py          how a script in `benchmarks` ends where it cannot run
    profiler.py        where a step's time goes
"""
