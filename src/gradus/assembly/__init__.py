"""Builds engines from their parts.

Read in this order:

    final.py        the final engine, composed by its switches
    on_gpu.py       the model's runner on a GPU's kernels
    on_torch.py     the model's runner on a CPU's kernels, or on torch alone
    draft_rows.py   a draft model resized to the model's vocabulary
    heads.py        trained heads that draft
    start_up.py     kernels compiled and steps captured, on a GPU
    guard.py        an engine that reports in one line why it stopped
    rehearsal.py    crowds of requests served before the first real one
    prefixes.py     the directory that keeps an engine's prefixes
    memory.py       a failed allocation in one line
    parallel.py     an engine whose model several processes share;  rank.py: the other processes
    remote.py       an engine whose runner is another process
    checkpoint.py   a model loaded, and its engine built
"""
