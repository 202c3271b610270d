"""Logits to token ids.

Read sampler.py first (the reference, on any device), then noise.py (noise from seed and position) and
kernel_sampler.py (the same draw in one kernel).
"""
