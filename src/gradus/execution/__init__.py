"""Runners: a plan becomes sampled tokens on a device.

Read in this order:

    prompt_scores.py   log-probabilities of a prompt's own tokens
    result.py     a step's result, copied to the host
    runner.py     one eager step, on torch
    compiled.py   on a CPU, steps of few tokens in compiled kernels
    drafting/     draft models, and steps that verify drafts on a CPU
    gpu/          steps on a GPU's kernels, replayed from CUDA graphs
    memory/       the device's memory, planned before it is taken
"""
