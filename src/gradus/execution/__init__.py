"""From a plan to sampled tokens on a device.

Read runner.py first (one eager step), then graphs.py (decode steps replayed from CUDA graphs) and warm_up.py.
memory_plan.py plans the device's memory (memory.py) before it is taken; timeline.py records steps.
"""
