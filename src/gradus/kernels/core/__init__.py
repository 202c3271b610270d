"""The basis of every Triton kernel here: overlapping launches, compilation, tuning, and views of a model's modules.

constants.py    numbers that kernels share
gluon.py        load kernels in Gluon, where this Triton's is compatible
overlap.py      launches that start while the ones before them drain (programmatic dependent launch)
compilers.py    which kernels a start compiles, and which of them are cached
compiling.py    compile them all in parallel before a model is rehearsed
tuning.py       the fastest launches that were measured on a device
counters.py     counters that identify the last of several programs
view.py         a model's modules under other classes, on the same weights
"""
