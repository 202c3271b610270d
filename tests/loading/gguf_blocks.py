"""GGUF's blocks from floats: the `gguf` package's for the simple formats, written out here for the K-formats.

The encoders round plainly, without llama.cpp's search for better scales. What they write is decoded by the package.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

Array = np.ndarray


def encode(values: Array, kind: Type) -> Array:
    """float32 [N, K] → uint8 [N, bytes per row]."""
    if kind not in K_FORMATS:
        return np.asarray(gguf.quants.quantize(values, kind))
    blocks = K_FORMATS[kind](values.reshape(-1, 256))
    assert blocks.shape[1] == gguf.GGML_QUANT_SIZES[kind][1]
    return blocks.reshape(len(values), -1)


def random_blocks(kind: Type, rows: int, width: int, seed: int = 0) -> Array:
    """Every bit at random, except that scales are small floats: uint8 [rows, bytes per row]."""
    draw = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (rows * width // values, size), dtype=np.uint8)
    scales = (draw.standard_normal((len(blocks), 2)) * 0.01).astype(np.float16).view(np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = draw.integers(110, 125, len(blocks))  # exponents
    elif kind == Type.Q6_K:
        blocks[:, 208:] = scales[:, :2]
    else:
        count = 4 if kind in (Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K) else 2
        blocks[:, :count] = scales[:, :count]
    return blocks.reshape(rows, -1)


def _q4_k(values: Array) -> Array:
    numbers, head = _with_minima(values, 15)
    return np.concatenate([head, _pairs(numbers)], 1)


def _q5_k(values: Array) -> Array:
    numbers, head = _with_minima(values, 31)
    fifths = np.zeros((len(values), 32), np.uint8)
    for group in range(8):
        fifths |= (numbers[:, group] >> 4) << group
    return np.concatenate([head, fifths, _pairs(numbers & 15)], 1)


def _with_minima(values: Array, most: int) -> tuple[Array, Array]:
    """Integers 0 … most, [n, 8, 32], and a block's first 16 bytes."""
    groups = values.reshape(-1, 8, 32)
    minima = np.maximum(-groups.min(2), 0)
    spans = (groups.max(2) + minima) / most
    d, m = (np.float16(each.max(1, keepdims=True) / 63) for each in (spans, minima))
    scales = np.rint(spans / np.maximum(d, 1e-8)).clip(0, 63).astype(np.uint8)
    offsets = np.rint(minima / np.maximum(m, 1e-8)).clip(0, 63).astype(np.uint8)
    steps = np.maximum(d.astype(np.float32) * scales, 1e-8)[..., None]
    numbers = np.rint((groups + (m.astype(np.float32) * offsets)[..., None]) / steps).clip(0, most).astype(np.uint8)
    packed = np.zeros((len(groups), 12), np.uint8)
    for group in range(4):
        high_scale, high_offset = scales[:, group + 4], offsets[:, group + 4]
        packed[:, group] = scales[:, group] | (high_scale >> 4) << 6
        packed[:, group + 4] = offsets[:, group] | (high_offset >> 4) << 6
        packed[:, group + 8] = (high_scale & 15) | (high_offset & 15) << 4
    return numbers, np.concatenate([d.view(np.uint8), m.view(np.uint8), packed], 1)


def _pairs(numbers: Array) -> Array:
    """Integers of 4 bits, [n, 8, 32] → uint8 [n, 128]: two groups in 32 bytes."""
    return (numbers[:, 0::2] | numbers[:, 1::2] << 4).reshape(len(numbers), 128)


def _q6_k(values: Array) -> Array:
    groups = values.reshape(-1, 16, 16)
    spans = np.abs(groups).max(2) / 31
    d = np.float16(spans.max(1, keepdims=True) / 127)
    scales = np.rint(spans / np.maximum(d, 1e-8)).clip(0, 127).astype(np.int8)
    steps = np.maximum(d.astype(np.float32) * scales, 1e-8)[..., None]
    numbers = (np.rint(groups / steps).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    lower, upper = numbers & 15, numbers >> 4
    low = np.concatenate([lower[:, :, 0] | lower[:, :, 2] << 4, lower[:, :, 1] | lower[:, :, 3] << 4], 2)
    high = upper[:, :, 0] | upper[:, :, 1] << 2 | upper[:, :, 2] << 4 | upper[:, :, 3] << 6
    parts = low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), d.view(np.uint8)
    return np.concatenate(parts, 1)


K_FORMATS = {Type.Q4_K: _q4_k, Type.Q5_K: _q5_k, Type.Q6_K: _q6_k}
