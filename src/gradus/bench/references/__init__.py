"""Reference implementations of the kernels in plain torch, for tests and benchmarks.

Read in this order:

    rows.py        norms, activations, rotation, and keys and values in their pages
    products.py    products, and activations in 8 bits
    attention.py   paged attention
    step.py        a step's rows, the tokens drawn, and what was accepted
"""
