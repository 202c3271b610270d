"""Logits to tokens on the device.

noise.py          Philox noise by (seed, position, token)
seen_words.py     how counts of tokens are packed
slot_settings.py  penalties, biases and cut-offs, by slot
plain.py          one race over the vocabulary, with the same noise: all that a temperature takes
narrowing.py      top-k, top-p and min-p without sorting
full.py           draw rows with such settings, and report the likeliest tokens
reference.py      temperature alone, in torch
"""
