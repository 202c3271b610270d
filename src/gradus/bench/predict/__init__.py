"""Predictions, made before anything is measured: a lower bound for each step, and whole workloads played on it.

Read in this order:

    roofline.py      what a step costs at least: bytes and operations, from the model's configuration
    prediction.py    a workload played through a phase's schedule, with the roofline as its clock
    simulation.py    the real scheduler and cache, over a model that is a formula

No torch here.
"""
