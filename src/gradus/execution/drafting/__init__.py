"""Draft models, and steps that verify drafts on a CPU.

Read in this order:

    draft_model.py    a smaller model drafts
    draft_passes.py   the same on a GPU, as part of the step's graph
    verifying.py      steps on a CPU: drafts become spans of known tokens
"""
