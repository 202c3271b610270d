"""The kernels of experts in torch: pairs sorted by expert, and each expert's rows by its matrix."""

import torch
from torch import Tensor

from gradus.kernels.experts.dispatch import Dispatch
from gradus.models.layers import ACTIVATIONS, gated


def dispatch_reference(chosen: Tensor, experts: int) -> Dispatch:
    """Sort pairs by expert. chosen: [N, k]."""
    flat = chosen.flatten()
    pairs = flat.argsort(stable=True)
    pairs = pairs[(flat[pairs] >= 0) & (flat[pairs] < experts)]
    edges = torch.arange(experts + 1, device=flat.device)
    starts = torch.searchsorted(flat[pairs].contiguous(), edges.to(flat.dtype))
    return Dispatch(pairs.int(), starts.int(), chosen.shape[1])


def up_reference(
    x: Tensor, weight: Tensor, plan: Dispatch, activation: str, *, is_gated: bool = True, bias: Tensor | None = None
) -> Tensor:
    """Compute what `up_product` does, summing in float32: [N k, F]."""
    experts, parts = plan.experts, 2 if is_gated else 1
    width = weight.shape[0] // (experts * parts)
    found = []
    for expert, rows in _rows_of(plan):
        halves = []
        for part in range(parts):
            start = (part * experts + expert) * width
            product = x[rows // plan.chosen].float() @ weight[start : start + width].float().t()
            halves.append(product if bias is None else product + bias[start : start + width].float())
        features = torch.cat(halves, 1)
        found.append(gated(activation)(features) if is_gated else ACTIVATIONS[activation](features))
    return torch.cat(found).to(x.dtype)


def down_reference(features: Tensor, weight: Tensor, plan: Dispatch, bias: Tensor | None = None) -> Tensor:
    """Compute what `down_product` does, summing in float32: [N k, D]."""
    width = weight.shape[0] // plan.experts
    out = torch.zeros(len(features), width, dtype=features.dtype, device=features.device)
    start = 0
    for expert, rows in _rows_of(plan):
        part = slice(expert * width, (expert + 1) * width)
        product = features[start : start + len(rows)].float() @ weight[part].float().t()
        out[rows] = (product if bias is None else product + bias[part].float()).to(out.dtype)
        start += len(rows)
    return out


def _rows_of(plan: Dispatch) -> list[tuple[int, Tensor]]:
    """List each expert's pairs."""
    starts = plan.starts.tolist()
    return [(expert, plan.pairs[starts[expert] : starts[expert + 1]].long()) for expert in range(plan.experts)]
