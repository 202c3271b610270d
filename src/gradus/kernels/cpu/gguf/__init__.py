"""Products of matrices in GGUF's blocks, as a file stores them: nothing is unpacked in memory. Read in this order:

blocks.py      a block of each format as vectors of floats, in LLVM code
product.py     rows of activations times rows of blocks; rows widened for torch's products
panels.py      a prompt's rows, rounded, times blocks, in bytes
"""
