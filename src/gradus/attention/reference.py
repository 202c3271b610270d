"""Causal attention of one span, in plain torch: the reference for every other backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_MASKED = 1 << 24
"""The most entries of a mask, a query's view of a key each: 16 MiB, and 64 MiB in the kernels, which want numbers. A
prompt's own would grow with its square."""

SINK_WIDTH = 8
"""Numbers that a head has in addition where there are sinks: torch's kernels want heads of a multiple of eight."""


def attend_causal(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    start: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute softmax attention (Vaswani et al. 2017, section 3.2.1) for the queries at positions start, start + 1, …

    q: [n, Hq, Dh]; keys, values: [Hkv, m, Dh], positions 0 … m - 1, m = start + n. Returns [n, Hq, Dh].
    window: a query sees itself and the window - 1 positions before it (Mistral, Gemma 3); None sees all.
    softcap: scores become softcap * tanh(score / softcap) before the mask (Gemma 2).
    sinks: float32 [Hq]; one more logit of each query head's softmax, whose value is nothing (gpt-oss). No model has
    both.
    """
    n, m = q.shape[0], keys.shape[1]
    masked = softcap is not None or _needs_mask(q, m, start, window, sinks)
    most = max(1, MOST_MASKED // (m if softcap is None else m * q.shape[1]))  # with a soft cap, heads have own scores
    if masked and n > most:
        options = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
        return _attend_in_parts(q, keys, values, most, start, **options)
    if n == 1 and window is not None and m > window:
        keys, values = keys[:, -window:], values[:, -window:]  # a lone query reads only its window
        start, m = window - 1, window
    if sinks is not None:
        return _attend_with_sinks(q, keys, values, sinks, start, scale, window)
    if softcap is not None:
        visible = causal_mask(n, m, start, window, q.device)[None]
        return attend_masked(q[None], keys[None], values[None], visible, scale=scale, softcap=softcap)[0]
    if n == 1:
        return _attend(q, keys, values, scale)
    sees_all = window is None or window >= m
    if sees_all and start == 0:
        return _attend(q, keys, values, scale, is_causal=True)  # torch's own causal mask begins where the keys do
    if sees_all and q.is_cuda:
        return _attend_to_the_end(q, keys, values, scale)
    return _attend(q, keys, values, scale, mask=causal_mask(n, m, start, window, q.device))


def _needs_mask(q: Tensor, m: int, start: int, window: int | None, sinks: Tensor | None) -> bool:
    """Whether torch's kernels need a mask: without one, queries see all keys up to their own from the first key on, or
    on a GPU up to the last key."""
    if window is not None and window < m:
        return True
    return not q.is_cuda and (start > 0 or sinks is not None)


def _attend_in_parts(q: Tensor, keys: Tensor, values: Tensor, most: int, start: int, **options: Any) -> Tensor:
    """Attend like `attend_causal`, with `most` queries at a time, and the keys that these see."""
    window, out = options["window"], torch.empty_like(q)
    for first in range(0, len(q), most):
        part = q[first : first + most]
        oldest = 0 if window is None else max(0, start + first - window + 1)
        seen = slice(oldest, start + first + len(part))
        out[first : first + most] = attend_causal(
            part, keys[:, seen], values[:, seen], start=start + first - oldest, **options
        )
    return out


def _attend_with_sinks(
    q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, start: int, scale: float, window: int | None
) -> Tensor:
    """Attend like `attend_causal`, with the sink as a key before all others."""
    n, m, width = q.shape[0], keys.shape[1], q.shape[2]
    q, keys, values = _sink_first(q, keys, values, sinks, scale)
    if q.is_cuda and (window is None or window >= m):
        return _attend_to_the_end(q, keys, values, scale)[..., :width]
    mask = None if n == 1 else _and_the_sink(causal_mask(n, m, start, window, q.device))
    return _attend(q, keys, values, scale, mask=mask)[..., :width]


def _sink_first(q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Append SINK_WIDTH numbers to each head, and put a key in front whose score is the query head's sink.

    q: [..., Hq, Dh]; keys, values: [..., Hkv, m, Dh]. So torch's fused attention computes the sink like any score, and
    no score is written out. The key's own numbers and its value are zeros. The sink is a sum of two of the queries'
    numbers, since one of bfloat16 alone would round it to three digits.
    """
    wanted = sinks / scale
    high = wanted.to(q.dtype)
    low = (wanted - high.float()).to(q.dtype)
    own = F.pad(torch.stack((high, low), -1), (0, SINK_WIDTH - 2)).expand(*q.shape[:-1], SINK_WIDTH)
    q, keys, values = torch.cat((q, own), -1), F.pad(keys, (0, SINK_WIDTH, 1, 0)), F.pad(values, (0, SINK_WIDTH, 1, 0))
    keys[..., 0, -SINK_WIDTH : 2 - SINK_WIDTH] = 1
    return q, keys, values


def _and_the_sink(mask: Tensor) -> Tensor:
    """[..., m] → [..., 1 + m]: every query sees the sink."""
    return F.pad(mask, (1, 0), value=True)


def _attend_to_the_end(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attend with queries at the end of their keys, on a GPU: torch's kernels support this alignment by name.

    With the same mask as a tensor, torch would write all scores out, and a long prompt in chunks would take many
    times as long as whole.
    """
    from torch.nn.attention.bias import causal_lower_right  # here: torch's compiler comes with it

    group = q.shape[1] // keys.shape[0]
    if group > 1 and q.dtype == torch.float32:  # the float32 kernel needs one key head per query head
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    return _attend(q, keys, values, scale, mask=causal_lower_right(q.shape[0], keys.shape[1]))


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Call torch's fused attention with the shapes of `attend_causal`."""
    out = _fused(
        q.transpose(0, 1).unsqueeze(0),  # [1, Hq, n, Dh]: the layout that torch's kernels read
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[0],
    )
    return out.squeeze(0).transpose(0, 1)


def attend_side_by_side(q: Tensor, keys: Tensor, values: Tensor, *, scale: float) -> Tensor:
    """Attend causally in B whole sequences. q: [B, n, Hq, Dh]; keys, values: [B, Hkv, n, Dh]. Returns q's shape."""
    grouped = q.shape[2] != keys.shape[1]
    return _fused(q.transpose(1, 2), keys, values, is_causal=True, scale=scale, enable_gqa=grouped).transpose(1, 2)


def causal_mask(n: int, m: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """Make an [n, m] bool mask, True where query start + i may see key j: j ≤ start + i, and j > start + i - window."""
    queries = torch.arange(start, start + n, device=device).unsqueeze(1)
    keys = torch.arange(m, device=device).unsqueeze(0)
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def attend_masked(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend in B sequences side by side, each over its own keys.

    q: [B, n, Hq, Dh]; keys, values: [B, Hkv, m, Dh]; visible: bool [B, n, m], with at least one key per query.
    softcap, sinks: see `attend_causal`. Returns [B, n, Hq, Dh].
    """
    if sinks is not None:
        width, visible = q.shape[-1], _and_the_sink(visible)
        q, keys, values = _sink_first(q, keys, values, sinks, scale)
        return attend_masked(q, keys, values, visible, scale=scale)[..., :width]
    heads, group = keys.shape[1], q.shape[2] // keys.shape[1]
    # Query heads that share a key head become additional queries of it, so no key is copied: [B, Hkv, n · group, Dh]
    grouped = q.unflatten(2, (heads, group)).transpose(1, 2).flatten(2, 3)
    mask = visible.repeat_interleave(group, dim=1).unsqueeze(1)
    if softcap is None:
        out = _fused(grouped, keys, values, attn_mask=mask, scale=scale)
    else:  # torch's fused attention has no soft cap, so write the formula out
        scores = softcap * torch.tanh((grouped @ keys.transpose(-2, -1)).float() * scale / softcap)
        out = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(values.dtype) @ values
    return out.unflatten(2, (-1, group)).transpose(1, 2).flatten(2, 3)


# -- torch's kernels ---------------------------------------------------------------------------------------------------


def _fused(q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
    """Call torch's fused attention; on a GPU with any of its kernels except cuDNN's."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, keys, values, **options)
    with without_cudnn_attention():
        return F.scaled_dot_product_attention(q, keys, values, **options)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Exclude cuDNN's attention kernel within this block, and restore torch's setting afterwards.

    cuDNN makes a plan for every new shape, and a decode has one more key at every step, so each of its calls would take
    as long as hundreds of others. The host chooses the kernel when the operation is called, and a captured graph keeps
    it. `torch.nn.attention.sdpa_kernel` also works, but saves and restores every flag, in every layer.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
