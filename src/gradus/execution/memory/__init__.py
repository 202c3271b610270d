"""The device's memory.

Read in this order:

    device_memory.py   how much is free, and which processes hold the rest
    footprint.py       a model's own part of it, from its numbers alone
    plan.py            an engine's memory, planned before any of it is taken
    concessions.py     defaults lowered if memory is short
"""
