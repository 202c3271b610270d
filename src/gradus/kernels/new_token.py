"""What a decode does before it attends, by the program that attends: turn its queries, store its key and value.

Idea: `rope_store` is a launch that moves a few kilobytes, and attention's first step is to read them again. With one
new token a sequence both fit into one launch. Whoever attends for a key head turns that head's queries for itself,
straight from the qkv product. The program that has the last of the earlier keys takes in the new key and value behind
them, out of registers, and writes both into their page, where later steps read them.

Layout: qkv [N, (Hq + 2 Hkv) Dh], the heads of q, k and v side by side. With a prompt this does not work: there, most
tokens attend to keys that other programs would still have to store.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.online_softmax import LOG2_E, capped


class Turning(NamedTuple):
    """What queries and keys pass before they attend.

    table: RotaryTable's [L, Dh], cosines then sines, or None (GPT-2). norms: the weights [Dh] of q's and k's RMSNorm,
    or None.
    """

    table: Tensor | None
    norms: tuple[Tensor, Tensor] | None
    eps: float


@triton.jit
def loaded(heads: tensor, d: tensor, inside: tensor, HEAD_DIM: constexpr) -> tensor:
    """Heads [R, Dh] that begin at pointers [R, 1], and each value's partner in the rotation, as they are."""
    HALF: constexpr = HEAD_DIM // 2
    partner = tl.load(heads + tl.where(d < HALF, d + HALF, d - HALF), mask=inside, other=0.0)
    return tl.load(heads + d, mask=inside, other=0.0), partner


@triton.jit
def turned(
    value: tensor, partner: tensor, gain: tensor, angles: tensor, d: tensor, eps: float, HEAD_DIM: constexpr
) -> tensor:
    """Those heads normalized (gain: None: not) and rotated (angles, of the token's position: None: not).

    See `gradus.models.rope.rotate`. Rounded as it would be if it were stored.
    """
    HALF: constexpr = HEAD_DIM // 2
    inside, x, partner = d < HEAD_DIM, value.to(tl.float32), partner.to(tl.float32)
    if gain is not None:
        other = tl.where(d < HALF, d + HALF, d - HALF)
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        x *= scale * tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
        partner *= scale * tl.load(gain + other, mask=inside, other=0.0).to(tl.float32)
    if angles is not None:
        cos = tl.load(angles + d % HALF, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(angles + HALF + d % HALF, mask=inside, other=0.0).to(tl.float32)
        x = x * cos + tl.where(d < HALF, -partner, partner) * sin
    return x.to(value.dtype)


@triton.jit
def taken_in(
    seen: tensor, total: tensor, peak: tensor, queries: tensor, key: tensor, value: tensor, counts: tensor,
    scale: float, softcap: float, SOFTCAP: constexpr,
) -> tensor:  # fmt: skip
    """What a tile has seen, with one key and value more, [1, Dh] each, if it `counts`: a step of `sweep`."""
    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
    if SOFTCAP:
        score = capped(score, softcap)
    score = tl.where(counts, score * LOG2_E, float("-inf"))
    new_peak = tl.maximum(peak, score)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weight, shrink = tl.exp2(score - base), tl.exp2(peak - base)
    total = total * shrink + weight
    seen = seen * shrink[:, None] + weight[:, None] * value.to(tl.float32)
    return seen, total, new_peak
