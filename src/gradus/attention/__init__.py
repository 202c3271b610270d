"""Storing and reading keys and values: everything that changes from phase to phase and the model never sees.

Read in this order:

    backend.py        the protocol of a backend
    batch.py          one step as the device sees it
    reference.py      attention in plain torch;  whole.py: over a whole sequence in one step
    lent.py           keys and values that several layers read
    storage.py        the tensors of keys and values, in pages;  fp8_storage.py: in 8 bits
    paged.py          attention through block tables
    decodes.py        the protocol of attention for decodes
    gathered.py       decodes on any device: gather pages, then one attention for all
    sparse.py         decodes on a CPU, without gathering
    triton_paged.py   kernels on a GPU;  tiles.py: their shapes for each kind of heads
    graph_paged.py    the same in steps that are replayed
"""
