"""Steps on a GPU's kernels.

Read in this order:

    kernel_pass.py     the model's pass and the draw, launched without waiting
    results.py         a step's tokens, sent to the host by itself
    page_copies.py     copies of pages to host memory and back, while steps run
    capturing.py       CUDA graphs recorded, and inputs sent to fixed addresses
    step_graphs.py     the decode step, replayed from graphs
    masked_draws.py    draws that wait for the masks of their rows
    warm_up.py         every launch run once, before the first request
    prompt_graphs.py   the model's pass over short prompts, replayed as well
"""
