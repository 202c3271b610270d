"""Products of quantized matrices (int4, int8, fp8), and of quantized activations.

tile.py            what the tiles of all formats share: their launch, sharing of K, and how a product ends
quantize.py        activations to 8 bits, a scale per row
int4.py            4-bit weights, widened to 16 bits in registers
eight_bits.py      8-bit weights and activations
tile_tables.py     which tile for which product (measured/)
hopper_launch.py   launch shapes of
hopper_product.py  prompts in int8 on Hopper, in Gluon
"""
