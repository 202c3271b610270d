"""Runners: a plan becomes sampled tokens on a device. Each file imports those before it. Read in this order:

layout.py          a plan's spans as one flat batch
prompt_scores.py   log-probabilities of a prompt's own tokens
result.py          a step's result, copied to the host
passes.py          a pass of the model over a step's rows, and the draw of their tokens: here in torch
compiled.py        on a CPU, passes of few tokens in compiled kernels
step.py            one step of decodes: rows, compute, draw, accept, send
drafting/          draft models
gpu/               on a GPU's kernels: passes, and steps replayed from CUDA graphs
runner.py          runs plans: decodes alone, or next to prompts
memory/            the device's memory, planned before it is taken
remote/            a runner in another process
"""
