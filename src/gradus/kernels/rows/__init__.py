"""Operations that read each row of activations once.

norm.py          RMS and layer norms, with the residual sum before them
summed_norm.py   a sum over several GPUs, with the residual sum and the norm after it
activation.py    gated and plain activations
passage.py       what heads pass before attention, as data
rope_store.py    rotate queries and keys, and store new keys and values on their pages
e4m3.py          conversion between fp8 and bfloat16 without the instruction
pages.py         pages of the cache, gathered for copies to host memory and scattered after copies from there
reference.py     the same in torch
"""
