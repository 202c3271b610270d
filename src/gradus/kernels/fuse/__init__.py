"""The kernels under a model: its modules get twins whose forward passes launch fused kernels.

model.py       16-bit weights
quantized.py   quantized weights
experts.py     mixtures of experts
"""
