"""Matrices in fewer bits: each scheme's storage and its arithmetic in torch, and the choice of a scheme per matrix.

Read in this order:

    linear.py     a matrix that is not stored as floats: the base of every scheme
    int8.py       integers of 8 bits, for weights and activations
    fp8.py        floats of 8 bits, for both: one scale per row and token, or per block
    int4.py       weights of 4 bits in groups, activations unrounded
    mxfp4.py      floats of 4 bits in blocks with a power of two, as gpt-oss has them, activations unrounded
    gguf.py       blocks of 4 to 8 bits, as in files of llama.cpp, activations unrounded
    schemes.py    the schemes by name
    mix.py        the scheme of each matrix: one for all, or patterns of names from a file
    parts.py      matrices side by side with different schemes
    precision.py  a precision that includes a quantization
    grid.py       groups of integers with a zero point, as in files
    gptq.py, awq.py   rounding better than to nearest, with the help of activations
    kv.py         keys and values in 8 bits

A scheme's arithmetic never depends on the number of rows, so a request's tokens do not depend on its neighbors.
Kernels may differ only in the order of their sums.
"""
