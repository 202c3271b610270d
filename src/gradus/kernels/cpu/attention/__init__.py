"""Attention over pages, divided into spans of positions. Read in this order:

row.py      a decode's row, over the positions of a span
block.py    many rows of a prompt, whose query heads are the lanes of vectors
spans.py    how a step is divided into spans
"""
