"""Heads for a model, trained on what the model itself writes.

Read in this order:

    writing.py    conversations, both sides of which the model writes
    batches.py    conversations of about the same length, side by side
    learning.py   the loss of a batch, and its gradient, without all logits at once
    agreement.py  how often heads are right on texts that they were not trained on
    heads.py      the whole: text, training, a folder for `speculate=heads:FOLDER`
    __main__.py   the command, where typer and rich are not installed
"""
