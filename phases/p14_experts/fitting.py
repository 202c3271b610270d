"""Routers for a model that was cut into slices: predict, from a token's row, how much each slice will add.

Nobody has trained these slices to be chosen, so a router can only guess what leaving one out would lose: the length of
its result. A linear regression on real text makes that guess (Zhang et al. 2022 train a small network for it).

Shapes: T tokens, D hidden_size, F features of the MLP, E experts.
"""

import torch
from torch import Tensor

from gradus.models import MatrixId, Model
from phases.p07_quantization.quality import inputs_of
from phases.p14_experts.slices import layers_of

RIDGE = 1.0  # of the mean square of an input: keeps the regression from reading noise


def routers_for(model: Model, tokens: list[int], count: int) -> list[Tensor]:
    """Fit a router [E, D] for each layer, with `count` slices, on what the model computes for these tokens."""
    inputs = inputs_of(model, tokens)
    found = []
    for number, (layer,) in enumerate(layers_of(model)):
        x, features = (inputs[MatrixId(role, number)] for role in ("gate_up", "down"))
        found.append(regression(x, lengths(features, layer.down.weight.float(), count)))
    return found


def lengths(features: Tensor, down: Tensor, count: int) -> Tensor:
    """How long each slice's result is: features [T, F] and the matrix behind them [D, F] → [T, E]."""
    slices = zip(features.chunk(count, dim=1), down.chunk(count, dim=1), strict=True)
    return torch.stack([(part @ matrix.T).norm(dim=1) for part, matrix in slices], dim=1)


def regression(x: Tensor, wanted: Tensor) -> Tensor:
    """Fit a matrix [E, D] that maps x [T, D] to wanted [T, E], scaled so that its largest entry is 0.1."""
    gram = x.T @ x
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    router = torch.linalg.solve(gram, x.T @ wanted).T
    return router * (0.1 / router.abs().max())
