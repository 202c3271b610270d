"""Models that draft, and the steps that verify on a CPU.

Read in this order:

    draft_model.py    a smaller model drafts
    draft_passes.py   the same on a GPU, as a part of the step's graph
    verifying.py      a CPU's steps: drafts as spans of known tokens
"""
