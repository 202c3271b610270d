"""Sizing: a model's memory and speed on a card, for `gradus serve --explain MODEL`. Read in this order:

cards.py       cards by name, from their data sheets
pace.py        how long a step takes: the roofline, and what an engine takes beyond it
records.py     the repository's own measurements, next to the formula
estimate.py    a model on a card: memory, rates, waiting times, users
"""
