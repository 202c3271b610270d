"""Benchmarks as declarations: what is asked, which tables answer it, and who is compared. Nothing is measured here.

Read in this order:

    declaration.py   the parts of a benchmark; each phase declares one
    suites.py        benchmarks that span phases: ladder, ablation, matrix, decoding on a processor

No torch here.
"""
