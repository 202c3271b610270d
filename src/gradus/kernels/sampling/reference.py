"""A draw by temperature alone, in torch: the reference of `plain.py`. `gradus.sampling.sampler` has all others."""

import torch
from torch import Tensor

from gradus.kernels.sampling.noise import exponential


def sample_reference(logits: Tensor, seeds: Tensor, positions: Tensor, temperatures: Tensor) -> Tensor:
    best, likeliest = logits.float().max(dim=-1)
    divisor = torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(1)
    shares = ((logits.float() - best.unsqueeze(1)) / divisor).softmax(-1)
    drawn = (shares / exponential(seeds, positions, logits.shape[1])).argmax(-1)
    return torch.where(best.isfinite(), torch.where(temperatures > 0, drawn, likeliest), -1)
