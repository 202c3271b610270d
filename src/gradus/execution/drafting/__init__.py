"""Draft models.

Read in this order:

    draft_model.py    a smaller model drafts, in passes that the host lays out
    draft_passes.py   the same on a GPU, as part of the step's graph
"""
