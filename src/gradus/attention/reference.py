"""Causal attention of one span, in plain torch: what every other backend is checked against."""

import torch
from torch import Tensor
from torch.nn import functional as F


def attend_causal(
    q: Tensor, k: Tensor, v: Tensor, *, start: int, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1) of the queries at positions start, start + 1, …

    q: [n, Hq, Dh]; k, v: [m, Hkv, Dh] at positions 0 … m - 1, m = start + n. Returns [n, Hq, Dh].
    window: a query sees itself and the window - 1 positions before it (Mistral, Gemma 3); None sees all.
    softcap: scores become softcap * tanh(score / softcap) before the mask (Gemma 2).
    """
    n, m = q.shape[0], k.shape[0]
    if window is not None and n == 1 and m > window:
        k, v, m, start = k[-window:], v[-window:], window, window - 1  # a decode: what it cannot see need not be read
    if softcap is not None:
        return _attend_capped(q, k, v, causal_mask(n, m, start, window, q.device), scale, softcap)
    bare = n == 1 or (start == 0 and (window is None or window >= m))
    mask = None if bare else causal_mask(n, m, start, window, q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),  # [1, Hq, n, Dh]: the layout that torch's kernels read
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=bare and n > 1,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.squeeze(0).transpose(0, 1)


def causal_mask(n: int, m: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """[n, m] bool, True where query start + i may see key j: j ≤ start + i, and j > start + i - window."""
    queries = torch.arange(start, start + n, device=device).unsqueeze(1)
    keys = torch.arange(m, device=device).unsqueeze(0)
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def _attend_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    """The formula written out: torch's fused attention has no soft cap."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", q, k).float() * scale
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1).to(v.dtype), v)
