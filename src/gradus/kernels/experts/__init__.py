"""Mixtures of experts: products with the matrices that a router chose for each row.

launches.py  the launch shapes, and which one a number of rows takes
routing.py   logits to the chosen experts and their weights
pairs.py     one row, or two: each chosen expert is a matrix times a vector
few.py       up to 64 rows: each chosen expert is read once for all of its rows
combine.py   the weighted sum of a row's experts
"""
