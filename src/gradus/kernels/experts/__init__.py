"""Mixtures of experts: which rows each expert has, and the products of all experts in one launch.

dispatch.py         the rows of each expert, in their order
grouped_launch.py   launch shapes of grouped products
grouped_tables.py   which launch for which product (measured/)
grouped.py          the products of many rows: each expert's rows with its matrix
hopper_tiles.py     tiles of persistent programs on Hopper
hopper_streamed.py  a few rows per expert on Hopper, in Gluon
hopper_grouped.py   prompts on Hopper, in Gluon
reference.py        what these compute, in torch
"""
