"""Rotary position embedding (Su et al. 2021): a token's position as an angle.

A head's values are Dh/2 pairs, and pair i turns by position × frequency[i]. A dot product of two turned vectors
depends on the difference of their angles, so attention sees how far apart two tokens are, and a cached key stays as it
is when more tokens come.
"""

import math

import torch
from torch import Tensor, nn

from gradus.models.config import LinearScaling, Llama3Scaling, ModelConfig, Rope

POSITIONS_AT_ONCE = 1024  # of a table
Rotation = tuple[Tensor, Tensor]  # cos and signed sin of each token's angles, [N, 1, Dh] each


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn every head of every token by the token's angles. x: [N, H, Dh].

    Value i is paired with value i + Dh/2 (the "rotate-half" layout of Hugging Face checkpoints):
    out[i] = x[i] cos - x[i + Dh/2] sin, out[i + Dh/2] = x[i + Dh/2] cos + x[i] sin.
    """
    cos, signed_sin = rotation
    partner = x.roll(x.shape[-1] // 2, dims=-1)  # both halves change places: each value's partner
    return torch.addcmul(x * cos, partner, signed_sin)


class RotaryTable(nn.Module):
    """cos and sin of every position's angles, computed once; a step looks up its positions once for all layers.

    On a CPU, the table is computed as far as kernels have reached, and a step in torch computes its own positions. The
    system gives a process only the pages that it writes, and a context of 131,072 tokens has a table of 67 MB.
    """

    table: Tensor  # [context_length, Dh]: cosines, then sines

    def __init__(
        self, rope: Rope, head_dim: int, context_length: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        table = torch.empty(context_length, head_dim, dtype=dtype, device=device)
        self.register_buffer("table", table, persistent=False)
        self.speeds = frequencies(rope, head_dim)
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
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def _angles(self, positions: Tensor) -> Tensor:
        """float32 [N] → cosines and sines of the angles, float32 [N, Dh]."""
        angles = torch.outer(positions, self.speeds.to(positions.device))  # [N, Dh/2]
        return torch.cat((angles.cos(), angles.sin()), dim=-1)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[Dh/2] radians per token: a geometric series from 1 down to almost 1 / theta, scaled to longer contexts."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)


def has_frequencies(config: ModelConfig, values: Tensor) -> bool:
    """True if these are a configuration's frequencies, before or after scaling, perhaps rounded to 16 bits."""
    ropes = [rope for rope in (config.rope, config.local_rope) if rope is not None]
    known = [frequencies(rope, config.head_dim) for each in ropes for rope in (each, Rope(each.theta))]
    return any(
        values.shape == each.shape and torch.allclose(values.float(), each, rtol=0.02, atol=1e-6) for each in known
    )


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep fast rotations, which distinguish neighbors, and slow down the others, which distinguish far from near."""
    turns = scaling.original_context * plain / (2 * math.pi)  # how often each pair turns within the trained context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: fast, unchanged; 0: slow, divided by factor; blended between
    return kept * plain + (1 - kept) * plain / scaling.factor
