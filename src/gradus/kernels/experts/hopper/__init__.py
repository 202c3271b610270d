"""Grouped products on Hopper, in Gluon: persistent programs whose groups of warps copy, multiply and write at once.

tiles.py     which tiles a program has, and how they lie in memory
streamed.py  a few rows per expert: a stream of weights
grouped.py   prompts
"""
