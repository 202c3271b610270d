"""What every Triton kernel here is built on: overlapping launches, compilation, and modules with other forward passes.

constants.py    numbers that kernels share
gluon.py        kernels in Gluon, where there is one that they know
overlap.py      launches that start while the ones before them drain (programmatic dependent launch)
compilers.py    which kernels a start compiles, and which of them are cached
compiling.py    compile them all in parallel before a model is rehearsed
tuning.py       the fastest launches that were measured on a device
view.py         a model's modules under other classes, on the same weights
"""
