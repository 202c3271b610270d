"""Gemma 4's text models (Gemma Team 2026): 12B and 31B; E2B and E4B, whose layers have their own embeddings; 26B-A4B.

Most layers see only a window back, and attention and MLP normalize what they read and add, as in Gemma 3. But a long
context costs less. In 12B, 26B-A4B and 31B, layers that see everything have fewer key-value heads, twice as wide, and
their values are their keys before norm and rotation. In E2B and E4B, the last layers attend to the keys and values of
an earlier layer of their kind. Only a quarter of each wide head turns, and all values are normalized. 26B-A4B has
experts next to each layer's MLP.

Read in this order:

    block.py   a layer, dense or with experts;  names.py: its tensors in the files
    model.py   the model
"""
