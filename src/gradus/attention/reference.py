"""Causal attention of one span, in plain torch: what every other backend is checked against."""

import torch
from torch import Tensor
from torch.nn import functional as F


def attend_causal(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    start: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1) of the queries at positions start, start + 1, …

    q: [n, Hq, Dh]; keys, values: [Hkv, m, Dh], positions 0 … m - 1, m = start + n. Returns [n, Hq, Dh].
    window: a query sees itself and the window - 1 positions before it (Mistral, Gemma 3); None sees all.
    softcap: scores become softcap * tanh(score / softcap) before the mask (Gemma 2).
    """
    n, m = q.shape[0], keys.shape[1]
    if n == 1 and window is not None and m > window:
        keys, values = keys[:, -window:], values[:, -window:]  # what a lone query cannot see need not be read
        start, m = window - 1, window
    if softcap is not None:
        return _attend_capped(q, keys, values, causal_mask(n, m, start, window, q.device), scale, softcap)
    aligned = start == 0 and (window is None or window >= m)  # then torch's own causal mask is the right one
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),  # [1, Hq, n, Dh]: the layout that torch's kernels read
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=None if aligned or n == 1 else causal_mask(n, m, start, window, q.device),
        is_causal=aligned and n > 1,
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[0],
    )
    return out.squeeze(0).transpose(0, 1)


def causal_mask(n: int, m: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """[n, m] bool, True where query start + i may see key j: j ≤ start + i, and j > start + i - window."""
    queries = torch.arange(start, start + n, device=device).unsqueeze(1)
    keys = torch.arange(m, device=device).unsqueeze(0)
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def _attend_capped(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    """The formula written out: torch's fused attention has no soft cap."""
    grouped = q.unflatten(1, (keys.shape[0], -1))  # [n, Hkv, Hq // Hkv, Dh]
    scores = torch.einsum("nhgd,hmd->hgnm", grouped, keys).float() * scale
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, float("-inf"))
    return torch.einsum("hgnm,hmd->nhgd", scores.softmax(-1).to(values.dtype), values).flatten(1, 2)
