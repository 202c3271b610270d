"""From a plan to sampled tokens on a device.

Read in this order:

    runner.py     one eager step, on torch
    result.py     a step on its way from the device
    compiled.py   on a CPU, steps of few tokens in compiled kernels
    drafting/     models that draft, and a CPU's steps that verify
    gpu/          steps on a GPU's kernels, replayed from CUDA graphs
    memory/       the device's memory, planned before it is taken
    watch/        when each step did what, and plans played back
"""
