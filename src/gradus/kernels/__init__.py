"""Triton kernels: one file an operation, each with its idea, its shapes, the bytes it moves, and a torch reference.

They are imported by the parts that launch them and by nothing else: without a GPU nobody needs Triton.
"""
