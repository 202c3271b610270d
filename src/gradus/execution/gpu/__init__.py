"""Steps on a GPU's kernels.

Read in this order:

    decode_step.py     one step of decodes, from newest tokens to next ones, all of it on the device
    capturing.py       what is recorded, and how its inputs arrive
    step_graphs.py     that step, replayed
    runner.py          plans: decodes alone, or next to prompts
    prompt_graphs.py   the model's pass over short prompts, replayed as well
    warm_up.py         every launch once, before the first request
"""
