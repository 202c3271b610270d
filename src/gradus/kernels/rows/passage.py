"""Norms and rotation of a layer's heads, between the qkv product and attention, as kernels take them."""

from typing import NamedTuple

from torch import Tensor


class Passage(NamedTuple):
    """Norms and rotation of one layer's heads. By default they pass nothing.

    table: RotaryTable's [L, Dh], cosines then sines; None: heads are not rotated. norms: the weights of the RMSNorms of
    queries and keys, of any floating dtype: [Dh] each, or `across` all heads of a token, [Hq Dh] and [Hkv Dh]. The
    keys' is None where a layer has queries alone. growth: float32 [L], by which queries are multiplied at each position
    once they are rotated; only with a table. value_eps: of the values' RMSNorm, which has no weights; None: no norm.
    """

    table: Tensor | None = None
    norms: tuple[Tensor, Tensor | None] | None = None
    eps: float = 0.0
    across: bool = False
    growth: Tensor | None = None
    value_eps: float | None = None


NOTHING = Passage()
