"""What every Triton kernel here is built on: overlapping launches, compilation, and modules with other forward passes.

overlap.py    launches that start while the ones before them drain (programmatic dependent launch)
compilers.py  which kernels a start compiles, and which of them are cached
compiling.py  compile them all in parallel before a model is rehearsed
occupancy.py  how many programs of a compiled kernel live at once on a multiprocessor
view.py       a model's modules under other classes, on the same weights
"""
