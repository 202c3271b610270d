"""Write checkpoints in fewer bits: layer by layer, calibrated on a text, in files that other programs load too.

Read in this order:

    observed.py   a matrix that keeps statistics of its inputs
    layer.py      one layer of a model on its own: loaded, run, and written
    methods.py    from a layer with its statistics to integers: to nearest, AWQ, GPTQ
    files.py      the file format, compressed-tensors
    quantize.py   the whole: the text, layer after layer, and resuming an earlier run
"""
