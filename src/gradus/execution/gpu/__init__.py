"""Steps on a GPU's kernels.

Read in this order:

    decode_step.py     one step of decodes, from newest tokens to next ones, entirely on the device
    results.py         its tokens, sent to the host by itself
    capturing.py       CUDA graphs recorded, and inputs sent to fixed addresses
    step_graphs.py     the decode step, replayed from graphs
    masked_draws.py    draws that wait for the masks of their rows
    runner.py          runs plans: decodes alone, or next to prompts
    prompt_graphs.py   the model's pass over short prompts, replayed as well
    warm_up.py         every launch run once, before the first request
"""
