"""Mixtures of experts: products with the matrices that a router chose for each row.

routing.py         logits to the chosen experts and their weights
launches.py        launch shapes of few rows, and which one a number of rows takes
few.py             up to 64 rows: each chosen expert is read once for all of its rows
combine.py         the weighted sum of a row's experts
dispatch.py        the rows of each expert, in their order
grouped_launch.py  launch shapes of grouped products
grouped_tables.py  which launch for which product (measured/)
grouped.py         the products of more rows: each expert's rows with its matrix
hopper/            these on Hopper, in Gluon
packed_tiles.py    tiles of weights in fewer bits, in each form that they are kept in
packed_launch.py   launch shapes of their products
packed.py          the products of experts in fewer bits, of few rows and of many
reference.py       what these compute, in torch
"""
