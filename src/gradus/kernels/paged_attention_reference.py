"""What the paged attention kernel must give, in plain torch, one span after the other: what it is checked against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.attention.reference import attend_causal


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
) -> Tensor:
    """Gather each span's pages, then attend. Shapes as in `paged_attention`; slots, lengths: S numbers, query_start one
    more. Rows of no span, and of a padded one (length 0), are zeros.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for slot, first, stop, length in zip(slots, query_start, query_start[1:], lengths, strict=False):
        if stop > first and length:
            pages = tables[slot, : -(-length // keys.shape[1])].long()
            stored = [kept[pages].flatten(0, 1)[:length].transpose(0, 1) for kept in (keys, values)]
            out[first:stop] = attend_causal(
                q[first:stop], *stored, start=length - (stop - first), scale=scale, window=window, softcap=softcap
            )
    return out
