"""Keys and values in fewer bits: rounded once, when they are stored, and read by every later token.

Shapes: T tokens, H heads of keys and values, Dh numbers of a head. A vector is what one head has of one token.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.models import ModelConfig
from phases.p00_baseline.no_cache import Recompute
from phases.p07_quantization.formats import E4M3, decode, encode
from phases.p07_quantization.rounding import TINY, dequantize_groups, quantize_groups

Way = Callable[[Tensor], Tensor]
"""Maps keys or values, [T, H, Dh], to those that are read instead of them."""


def store(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round vectors to eight bits. x: [T, H, Dh]. Returns codes, int8 [T, H, Dh], and scales, float32 [T, H].

    A vector has a scale of its own, from itself alone: so what is stored for a token depends on nothing that comes
    later, and a page of a shared prefix is the same for every request that computes it.
    """
    scale = x.float().abs().amax(dim=-1).clamp(min=TINY) / 127
    return (x / scale[..., None]).round().to(torch.int8), scale


def scores(q: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Scores of one head's query and all its keys: [T]. q: [Dh]; codes: [T, Dh]; scale: [T].

    A key's scale is a factor of its whole sum, so it multiplies one score and not Dh numbers.
    """
    return (codes.to(q.dtype) @ q) * scale


def mixed(weights: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """The attention's output for one head: [Dh]. weights: [T], after softmax; codes: [T, Dh]; scale: [T].

    Here the sum is over tokens, and each has another scale: it goes to the weight.
    """
    return (weights * scale) @ codes.to(weights.dtype)


# -- ways to round, for the measurement --------------------------------------------------------------------------------


def int8(x: Tensor) -> Tensor:
    codes, scale = store(x)
    return codes * scale[..., None]


def fp8(x: Tensor) -> Tensor:
    """E4M3 with a scale per vector."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=TINY) / E4M3.largest
    return decode(encode(x / scale, E4M3), E4M3) * scale


def int4(x: Tensor) -> Tensor:
    """Four bits, a grid per vector: the numbers of one token share it."""
    return dequantize_groups(*quantize_groups(x.flatten(0, 1), x.shape[-1])).view(x.shape)


def int4_by_channel(x: Tensor, tokens: int = 32) -> Tensor:
    """Four bits, a grid per channel and 32 tokens: a loud channel shares it with nothing but itself.

    The tokens must all be there, so a cache keeps the newest ones wide until their 32 are complete. Here as there, the
    last ones of T that fill no group stay as they are.
    """
    whole = len(x) // tokens * tokens
    columns = x[:whole].flatten(1).T.contiguous()  # [H Dh, T]
    rounded = dequantize_groups(*quantize_groups(columns, tokens)).T.reshape(x[:whole].shape) if whole else x[:0]
    return torch.cat((rounded, x[whole:]))


class RoundedCache(Recompute):
    """Attends to keys and values as a cache in fewer bits would return them."""

    def __init__(self, config: ModelConfig, keys: Way, values: Way) -> None:
        super().__init__(config)
        self.keys, self.values = keys, values

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            k, v = self.keys(k), self.values(v)
        return super().attend(layer, q, k, v, sinks)


def loudness(x: Tensor) -> float:
    """How uneven the channels of keys or values are: the largest mean magnitude over the median one, of each head, on
    average. x: [T, H, Dh]."""
    size = x.abs().mean(dim=0)
    return float((size.amax(dim=-1) / size.median(dim=-1).values).mean())
