"""Heads for a model, trained on text that the model itself writes.

Read in this order:

    writing.py    conversations, with both sides written by the model
    batches.py    conversations of about the same length, side by side
    learning.py   the loss of a batch, and its gradient, without all logits at once
    agreement.py  how often heads are right on texts that they were not trained on
    heads.py      the whole: text, training, a folder for `speculate=heads:FOLDER`
    __main__.py   the command for machines without typer and rich
"""
