"""The device's memory.

Read in this order:

    device_memory.py   what there is of it, and who holds it
    plan.py            what an engine will take, before it takes it
    concessions.py     defaults lowered where memory is short
"""
