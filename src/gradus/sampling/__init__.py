"""Samples token ids from logits. The noise, a function of seed and position, is `gradus.kernels.sampling.noise`.

Read in this order:

    slots.py            the sampling settings of each slot's owner, in tables on the device
    constraints.py      the answers that keep to a grammar
    observer.py         what a draw shows to its observers
    sampler.py          the reference, on any device
    kernel_sampler.py   the same draw in one kernel
"""
