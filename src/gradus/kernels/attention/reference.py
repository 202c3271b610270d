"""Paged attention, one span after the other, in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    slots: Sequence[int],
    query_start: Sequence[int],
    lengths: Sequence[int],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Gather each span's pages, then attend. Shapes as in `paged_attention`; slots, lengths: S numbers, query_start one
    more. Rows outside of every span, and of a padded one (length 0), are zeros.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for slot, first, stop, length in zip(slots, query_start, query_start[1:], lengths, strict=False):
        if stop > first and length:
            pages = tables[slot, : -(-length // keys.shape[1])].long()
            k, v = (kept[pages].flatten(0, 1)[:length] for kept in (keys, values))
            out[first:stop] = _attended(q[first:stop], k, v, scale, window, softcap, sinks)
    return out


def _attended(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Softmax attention written out, in float32 at least. q: [n, Hq, Dh], the last of the m positions; [m, Hkv, Dh]."""
    n, m, group = len(q), len(keys), q.shape[1] // keys.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (kept.to(wide).repeat_interleave(group, 1) for kept in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    query = torch.arange(m - n, m, device=q.device).unsqueeze(1)
    key = torch.arange(m, device=q.device)
    visible = (key <= query) & (key > query - (window or m))
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:  # in the sum of weights, and nowhere else
        scores = torch.cat((scores, sinks.to(wide)[:, None, None].expand(-1, n, 1)), -1)
    weights = scores.softmax(-1)[..., :m]
    values = values.masked_fill(~visible.any(0)[:, None, None], 0)  # pages before the window may be anyone's by now
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
