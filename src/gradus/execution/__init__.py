"""From a plan to sampled tokens on a device.

Read in this order:

    runner.py        one eager step
    step.py          a step on its way from the device
    draft_model.py   a smaller model drafts;  draft_passes.py: on a GPU
    speculating.py   steps that verify drafts;  draft_steps.py: on a GPU;  draft_graphs.py: replayed
    graphs.py        decode steps replayed from CUDA graphs;  capturing.py: what is recorded, and how its inputs arrive
    prompt_graphs.py the model's pass over short prompts, replayed as well
    compiled.py      on a CPU, decode steps in compiled kernels
    warm_up.py       every launch once, before the first request
    memory_plan.py   the device's memory, planned before it is taken;  memory.py: what there is of it
    concessions.py   defaults lowered where memory is short
    timeline.py      when each step did what;  recording.py: plans written to a file, and played back
"""
