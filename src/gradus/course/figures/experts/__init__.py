"""p14's figures: pairs of tokens and experts sorted by expert, and what a batch reads.

Read in this order:

    sorting.py   the pairs of four tokens, before and after the sort
    batches.py   experts that a step reads, and bytes per token, by the tokens of the step
"""
