"""Products of quantized matrices (int4, mxfp4, GGUF's, int8, fp8), and of quantized activations.

tile.py            what the tiles of all formats share: their launch, and the sharing of K
quantize.py        activations to 8 bits, a scale per row
int4.py            4-bit weights, widened to 16 bits in registers
mxfp4.py           4-bit floats with a power of two per 32, made bfloat16 in registers
gguf.py            blocks of 4 to 8 bits, as in a GGUF file
eight_bits.py      8-bit weights and activations
pieces.py          products of many rows with a matrix that is wide piece by piece
tile_tables.py     which tile for which product (measured/)
hopper_launch.py   launch shapes of `hopper_product`, without Gluon
hopper_product.py  prompts in int8 on Hopper, in Gluon
reference.py       products, also of 16-bit matrices, and rounded activations, in torch
"""
