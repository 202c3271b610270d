"""Logits to tokens on the device.

noise.py              Philox noise by (seed, position, token)
exponential_noise.py  the same for the race of exponentials
plain.py              temperature alone: one race over the vocabulary
slot_settings.py      penalties, biases and cut-offs, by slot
seen_words.py         how counts of tokens are packed
narrowing.py          top-k, top-p and min-p without sorting
likeliest.py          the likeliest tokens, for log-probabilities
full.py               draw rows that use any of these settings
reference.py          temperature alone, in torch
"""
