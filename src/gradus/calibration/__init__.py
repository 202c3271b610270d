"""Checkpoints in fewer bits: layer by layer, with activations of a text to round by, and files that others load too.

In the order in which to read it:

    observed.py   a matrix that keeps statistics of what it multiplies
    layer.py      one layer of a model on its own: loaded, run, and written
    methods.py    from a layer with its statistics to integers: to nearest, AWQ, GPTQ
    files.py      how that is stored: compressed-tensors
    quantize.py   the whole: text, layers one after the other, where an earlier run ended
"""
