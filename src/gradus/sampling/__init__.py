"""Logits to token ids.

Read sampler.py first (the reference, on any device), then kernel_sampler.py (the same draw in one kernel). Their noise,
a function of seed and position, is `gradus.kernels.noise`.
"""
