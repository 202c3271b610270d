"""Engines put together.

Read in this order:

    final.py        the final engine, composed by its switches
    on_gpu.py       how the model runs on a GPU's kernels
    on_torch.py     how it runs on a CPU's kernels, or on torch alone
    draft_rows.py   a draft model in the model's size
    heads.py        trained heads, where they draft
    start_up.py     kernels compiled and steps captured, on a GPU
    guard.py        a lack of memory, said in one line
    rehearsal.py    a crowd served before the first request
    checkpoint.py   a model loaded, and its engine built
"""
