"""Products of matrices in 4 bits, one of their rows per lane of a vector. Read in this order:

tile.py        LANES weight rows times a few rows of activations, in LLVM code, for each type of activations
product.py     some rows of a matrix, block by block
panel.py       weights widened, for the prompts that torch multiplies
"""
