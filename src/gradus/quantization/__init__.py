"""Matrices in fewer bits: each scheme's storage, its arithmetic in torch, and which matrix of a model gets which.

In the order in which to read it:

    linear.py     a matrix that is kept in another way: what every scheme has in common
    int8.py       integers of 8 bits, for weights and activations
    fp8.py        floats of 8 bits, for both: one scale per row and token, or per block
    int4.py       weights of 4 bits in groups, activations as they are
    int8_groups.py   weights of 8 bits in groups, the same
    schemes.py    the schemes by name
    mix.py        which matrix gets which scheme: one for all, or patterns of names from a file
    parts.py      matrices side by side that are kept in different ways
    precision.py  a precision with a quantization in it
    packed.py     rows that a checkpoint has quantized already
    grid.py       groups of integers with a zero point: what files hold
    gptq.py, awq.py   to round better than to nearest, by activations
    kv.py         keys and values in 8 bits

A scheme's arithmetic never depends on how many rows there are, so a request's tokens do not depend on its neighbors.
Kernels may sum in another order, and nothing else.
"""
