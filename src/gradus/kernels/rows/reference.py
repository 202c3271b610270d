"""Norms, activations, what lies between the qkv product and attention, and moved pages, in torch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.rows.passage import NOTHING, Passage
from gradus.models.layers import gated
from gradus.quantization import kv


def add_rms_norm_reference(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    if delta is not None:
        x.copy_(x.float() + delta.float())
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def add_normalized_reference(
    x: Tensor, delta: Tensor, delta_weight: Tensor, eps: float, factor: Tensor | None = None
) -> None:
    total = x.float() + F.rms_norm(delta.float(), delta.shape[-1:], delta_weight.float(), eps)
    x.copy_(total if factor is None else total * factor.float())


def add_layer_norm_reference(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    if delta is not None:
        x.copy_(x.float() + delta.float())
    return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)


def gated_activation_reference(gate_up: Tensor, activation: str) -> Tensor:
    return gated(activation)(gate_up.float()).to(gate_up.dtype)


def activation_reference(x: Tensor, activation: str, times: Tensor | None = None) -> Tensor:
    wide = x.float()
    match activation:
        case "silu":
            wide = F.silu(wide)
        case "gelu":
            wide = F.gelu(wide)
        case _:
            wide = F.gelu(wide, approximate="tanh")
    return (wide if times is None else wide * times.float()).to(x.dtype)


def rope_store_reference(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    passage: Passage = NOTHING,
    positions: Tensor | None = None,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    page, kv_heads, head_dim = keys.shape[-3:]
    heads = qkv.float().view(qkv.shape[0], -1, head_dim)
    q, k, v = heads.split_with_sizes((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    gains = passage.norms or (None, None)
    q, k = (_passed(x, gain, passage, positions) for x, gain in zip((q, k), gains, strict=True))
    if passage.value_eps is not None:
        v = F.rms_norm(v, (head_dim,), eps=passage.value_eps)
    stored = slots >= 0
    rows = slots[stored]
    for number, (storage, new) in enumerate(((keys, k), (values, v))):
        new = new[stored].to(qkv.dtype)
        if scales is not None:
            new, found = kv.to_e4m3(new)
            scales[number][rows // page, :, rows % page] = found
        storage.view(-1, kv_heads, head_dim)[rows] = new
    return _grown(q, passage, positions).to(qkv.dtype).contiguous()


def turned_queries_reference(qkv: Tensor, head_dim: int, passage: Passage, positions: Tensor | None = None) -> Tensor:
    gain, _ = passage.norms or (None, None)
    q = _passed(qkv.float().view(qkv.shape[0], -1, head_dim), gain, passage, positions)
    return _grown(q, passage, positions).to(qkv.dtype)


def _passed(x: Tensor, gain: Tensor | None, passage: Passage, positions: Tensor | None) -> Tensor:
    """Normalize and rotate the heads of queries or of keys, float32 [N, H, Dh]."""
    if gain is not None:
        whole = x.flatten(1) if passage.across else x
        x = F.rms_norm(whole, whole.shape[-1:], gain.float(), passage.eps).view(x.shape)
    if passage.table is not None:
        cos, sin = passage.table[positions].float().unsqueeze(1).chunk(2, dim=-1)  # [N, 1, Dh / 2] each
        x = _rotated(x, cos, sin)
    return x


def _grown(q: Tensor, passage: Passage, positions: Tensor | None) -> Tensor:
    return q if passage.growth is None else q * passage.growth[positions][:, None, None]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def summed_rms_norm_reference(parts: Tensor, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
    """parts: every rank's x, [ranks, N, D], in rank order."""
    stream.copy_(_added(parts) + stream.float())
    return add_rms_norm_reference(stream, None, weight, eps)


def summed_reference(parts: Tensor) -> Tensor:
    return _added(parts).to(parts.dtype)


def _added(parts: Tensor) -> Tensor:
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total = total + part.float()
    return total


def gather_pages_reference(staged: Tensor, pool: Tensor, pages: Tensor) -> None:
    torch.index_select(pool, 1, pages, out=staged.transpose(0, 1))


def scatter_pages_reference(staged: Tensor, pool: Tensor, pages: Tensor) -> None:
    pool.index_copy_(1, pages, staged.transpose(0, 1))
