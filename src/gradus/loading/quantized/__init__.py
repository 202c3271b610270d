"""Checkpoints whose matrices others have quantized: recognized by their tensors, and read without unpacking them.

Read in this order:

    packed.py          a matrix that a checkpoint has quantized already
    formats.py         how others store quantized matrices: one function per format
    configuration.py   what a configuration says about them, compared with the tensors
    tensors.py         a checkpoint's tensors, packed where it packs them
"""
