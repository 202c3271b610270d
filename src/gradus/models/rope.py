"""Rotary position embedding (Su et al. 2021): a token's position as an angle.

A head's values are Dh/2 pairs, and pair i turns by position × frequency[i]. A dot product of two turned vectors
depends on the difference of their angles, so attention sees how far apart two tokens are, and a cached key stays as it
is when more tokens come.
"""

import math
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from gradus.models.config import LinearScaling, Llama3Scaling, LongRope, ModelConfig, Rope, Yarn

POSITIONS_AT_ONCE = 1024  # of a table


class Rotation(NamedTuple):
    """cos, signed_sin: of each token's angles, [N, 1, Dh] each. growth: of its queries, [N, 1, 1]; None: 1."""

    cos: Tensor
    signed_sin: Tensor
    growth: Tensor | None = None


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn every head of every token by the token's angles. x: [N, H, Dh].

    Value i is paired with value i + Dh/2 (the "rotate-half" layout of Hugging Face checkpoints):
    out[i] = x[i] cos - x[i + Dh/2] sin, out[i + Dh/2] = x[i + Dh/2] cos + x[i] sin.
    """
    cos, signed_sin, _ = rotation
    partner = x.roll(x.shape[-1] // 2, dims=-1)  # both halves change places: each value's partner
    return torch.addcmul(x * cos, partner, signed_sin)


class RotaryTable(nn.Module):
    """cos and sin of every position's angles, computed once; a step looks up its positions once for all layers.

    query_scales: float32 [context_length], by which queries are multiplied once they are turned; None: 1.

    On a CPU, the table is computed as far as kernels have reached, and a step in torch computes its own positions. The
    system gives a process only the pages that it writes, and a context of 131,072 tokens has a table of 67 MB.
    """

    table: Tensor  # [context_length, Dh]: cosines, then sines
    query_scales: Tensor | None

    def __init__(
        self, rope: Rope, head_dim: int, context_length: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        table = torch.empty(context_length, head_dim, dtype=dtype, device=device)
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("query_scales", _query_scales(rope, context_length, device), persistent=False)
        self.speeds = frequencies(rope, head_dim, context_length)
        self.amplitudes = amplitudes(rope, self.speeds)
        self.numbers = torch.empty(context_length, device=device)  # positions, looked up: so none is beyond the last
        self.filled = context_length if table.is_meta else 0  # positions that are computed
        if table.is_meta:  # torch would load its compiler to compute with shapes alone
            return
        torch.arange(context_length, out=self.numbers)
        if not table.is_cpu:
            self.reach(context_length)

    def reach(self, positions: int) -> None:
        """Compute at least this many positions of the table."""
        if positions <= self.filled:
            return
        with torch.inference_mode(self.table.is_inference()), torch.no_grad():
            for first in range(self.filled, positions, POSITIONS_AT_ONCE):
                rows = self.table[first : first + POSITIONS_AT_ONCE]
                rows.copy_(self._angles(self.numbers[first : first + len(rows)]))
                self.filled = first + len(rows)

    def forward(self, positions: Tensor) -> Rotation:
        """[N] → each token's rotation, in the layout that `rotate` takes."""
        whole = self.filled == len(self.table)
        found = self.table[positions] if whole else self._angles(self.numbers[positions]).to(self.table.dtype)
        cos, sin = found.unsqueeze(1).chunk(2, dim=-1)  # [N, 1, Dh/2] each
        growth = None if self.query_scales is None else self.query_scales[positions].to(found.dtype).view(-1, 1, 1)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1), growth)

    def _angles(self, positions: Tensor) -> Tensor:
        """float32 [N] → cosines and sines of the angles, float32 [N, Dh]."""
        angles = torch.outer(positions, self.speeds.to(positions.device))  # [N, Dh/2]
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return waves if self.amplitudes is None else waves * self.amplitudes.to(positions.device)


class Rotations(nn.Module):
    """The rotary tables of all layers, one for each kind: most models have one, and Gemma's two."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        kinds = [
            None if rope is None else (rope, config.layer(layer).head_dim) for layer, rope in enumerate(config.ropes)
        ]
        distinct = [*dict.fromkeys(kind for kind in kinds if kind is not None)]
        self.tables = nn.ModuleList(
            RotaryTable(rope, head_dim, config.context_length, dtype, device) for rope, head_dim in distinct
        )
        self.of_layer = [None if kind is None else distinct.index(kind) for kind in kinds]

    def table(self, layer: int) -> RotaryTable | None:
        number = self.of_layer[layer]
        return None if number is None else cast(RotaryTable, self.tables[number])

    def forward(self, positions: Tensor) -> list[Rotation | None]:
        """Look up the positions, [N], once for each kind of layer. Returns every layer's rotation."""
        found = [table(positions) for table in self.tables]
        return [None if number is None else found[number] for number in self.of_layer]


def frequencies(rope: Rope, head_dim: int, context_length: int = 0) -> Tensor:
    """[Dh/2] radians per token: a geometric series from 1 down to almost 1 / theta, scaled to longer contexts.

    Pairs that do not turn have 0. context_length: the model's own, by which LongRoPE chooses its factors.
    """
    turned = rope.turned or head_dim
    plain = 1.0 / rope.theta ** (
        torch.arange(0, turned, 2, dtype=torch.float32) / (head_dim if rope.proportional else turned)
    )
    scaled = _scaled(plain, rope, turned, context_length)
    return torch.cat((scaled, torch.zeros(head_dim // 2 - len(scaled))))


def _scaled(plain: Tensor, rope: Rope, turned: int, context_length: int) -> Tensor:
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case Yarn() as scaling:
            return _yarn(plain, rope.theta, turned, scaling)
        case LongRope() as scaling:
            long = context_length > scaling.original_context
            return plain / torch.tensor(scaling.long if long else scaling.short, dtype=torch.float32)


def amplitudes(rope: Rope, speeds: Tensor) -> Tensor | None:
    """[Dh], what cosines and sines are multiplied by: 1 where nothing turns. None: 1 everywhere."""
    if not isinstance(rope.scaling, Yarn | LongRope) or rope.scaling.amplitude == 1:
        return None
    return torch.where(speeds > 0, rope.scaling.amplitude, 1.0).repeat(2)


def half_order(head_dim: int, turned: int) -> list[int]:
    """The order of a head's values in which value i is paired with value i + Dh/2, the pairs that rest being last.

    Checkpoints of Phi pair the first `turned` values with each other, i with i + turned/2, and leave the others alone.
    Queries and keys are reordered alike as they are loaded, which changes no dot product.
    """
    half, rest = turned // 2, (head_dim - turned) // 2
    first = [*range(half), *range(turned, turned + rest)]
    return [*first, *range(half, turned), *range(turned + rest, head_dim)]


def _query_scales(rope: Rope, context_length: int, device: torch.device | str) -> Tensor | None:
    if rope.growth is None:
        return None
    whole = torch.arange(context_length, device=device) // rope.growth.original_context
    return 1 + rope.growth.beta * torch.log1p(whole.float())


def has_frequencies(config: ModelConfig, values: Tensor) -> bool:
    """True if these are a configuration's frequencies, before or after scaling, perhaps rounded to 16 bits."""
    kinds = {(rope, config.layer(layer).head_dim) for layer, rope in enumerate(config.ropes) if rope is not None}
    known = [
        frequencies(rope, head_dim, config.context_length)[: (each.turned or head_dim) // 2]
        for each, head_dim in kinds
        for rope in (each, replace(each, scaling=None))
    ]
    return any(
        values.shape == each.shape and torch.allclose(values.float(), each, rtol=0.02, atol=1e-6) for each in known
    )


def _yarn(plain: Tensor, theta: float, turned: int, scaling: Yarn) -> Tensor:
    """YaRN's "NTK by parts" (Peng et al. 2023, section 3.2): divide by the factor what turns too slowly to complete
    `slow` turns within the trained context, keep what completes `fast`, and blend linearly by the pair's number."""

    def pair(turns: float) -> float:
        """Number, counted in values, of the pair that completes `turns` turns within the trained context."""
        return turned * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.fast), pair(scaling.slow)
    if scaling.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    span = high - low if high != low else 0.001
    kept = 1 - ((torch.arange(turned // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return plain / scaling.factor * (1 - kept) + plain * kept


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep fast rotations, which distinguish neighbors, and slow down the others, which distinguish far from near."""
    turns = scaling.original_context * plain / (2 * math.pi)  # how often each pair turns within the trained context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: fast, unchanged; 0: slow, divided by factor; blended between
    return kept * plain + (1 - kept) * plain / scaling.factor
