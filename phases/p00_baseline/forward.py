"""A forward pass of Llama, from token ids to logits; and the loop that writes a text with it.

Shapes: T tokens of one sequence; the others are in weights.py.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from phases.p00_baseline.embedding import embed, rms_norm
from phases.p00_baseline.heads import attend_grouped, split
from phases.p00_baseline.rope import angles, rotate
from phases.p00_baseline.weights import Layer, Weights


def attention(x: Tensor, layer: Layer, turns: Tensor, head_dim: int) -> Tensor:
    """Let each token gather from itself and the tokens before it. x: [T, D], turns: [T, Dh/2] → [T, D]."""
    q = rotate(split(x @ layer.query, head_dim), turns)  # [T, D] @ [D, Hq Dh] → [T, Hq Dh] → [T, Hq, Dh]
    k = rotate(split(x @ layer.key, head_dim), turns)  # [T, D] @ [D, Hkv Dh] → [T, Hkv Dh] → [T, Hkv, Dh]
    v = split(x @ layer.value, head_dim)  # [T, Hkv, Dh]: values have no position
    gathered = attend_grouped(q, k, v)  # [T, Hq, Dh]
    return gathered.flatten(1) @ layer.output  # [T, Hq Dh] @ [Hq Dh, D] → [T, D]


def mlp(x: Tensor, layer: Layer) -> Tensor:
    """SwiGLU: (silu(x gate) · (x up)) down, with silu(z) = z · sigmoid(z). Each row by itself. x: [T, D] → [T, D]."""
    gate = x @ layer.gate  # [T, D] @ [D, F] → [T, F]
    up = x @ layer.up  # [T, D] @ [D, F] → [T, F]
    return (gate * gate.sigmoid() * up) @ layer.down  # [T, F] @ [F, D] → [T, D]


def forward(token_ids: Tensor, weights: Weights) -> Tensor:
    """token_ids: [T] → logits: [T, V]. Row i rates what may come after the tokens 0 … i."""
    turns = angles(len(token_ids), weights.head_dim, weights.theta)  # [T, Dh/2]
    x = embed(token_ids, weights.embedding)  # [T, D]
    for layer in weights.layers:
        x = x + attention(rms_norm(x, layer.attention_norm, weights.eps), layer, turns, weights.head_dim)  # [T, D]
        x = x + mlp(rms_norm(x, layer.mlp_norm, weights.eps), layer)  # [T, D]
    return rms_norm(x, weights.norm, weights.eps) @ weights.head  # [T, D] @ [D, V] → [T, V]


def write(prompt: list[int], weights: Weights, choose: Callable[[Tensor], int]) -> Iterator[int]:
    """One new token after the other, without end: each pass reads the prompt and all that was written."""
    tokens = list(prompt)
    while True:
        logits = forward(torch.tensor(tokens), weights)[-1]  # [T] → [T, V] → [V]: the last row has seen all
        tokens.append(choose(logits))
        yield tokens[-1]
