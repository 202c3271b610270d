"""Arguments of a loop over int4 with rounded activations, and what it should write."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradus.kernels.cpu.int4.tile import COLUMNS, PLANE
from gradus.kernels.cpu.vectors import LANES
from gradus.models.layers import MatrixId
from gradus.quantization.int4 import Int4Linear

Arguments = list[int | NDArray[Any]]


def int4_product(group: int, count: int, width: int = 256) -> tuple[Arguments, NDArray[Any], NDArray[Any]]:
    """The arguments of `int4_tile` from its literals on, the expected product, and the array that it is written to."""
    random = np.random.default_rng(group * count)
    linear = Int4Linear(MatrixId("down", 0), width, (LANES,), False, torch.float32, group=group)
    nibbles = random.integers(0, 16, (LANES, width), dtype=np.uint8)
    nibbles[0] = 15
    scales, offsets = (torch.from_numpy(random.standard_normal((LANES, width // group))) for _ in range(2))
    linear.store(0, torch.from_numpy(nibbles), scales, offsets)
    wide = linear.dequantized().double().numpy()
    linear.use_lanes()
    x = random.integers(-127, 128, (count, width), dtype=np.int8)
    x[0, : width // 2], x[0, width // 2 :] = 127, -127
    planes = x.reshape(count, -1, PLANE)
    x_scales = random.random(planes.shape[:2], np.float32)
    sums = planes.sum(2).astype(np.float32) * x_scales
    expected = (planes * x_scales[..., None].astype(np.float64)).reshape(count, width) @ wide.T
    exchanged = np.ascontiguousarray(x.reshape(count, -1, 4)[:, :, COLUMNS].reshape(count, width))
    out = np.zeros((count, LANES), np.float32)
    words, pairs = (each.detach().contiguous().numpy() for each in (linear.words, linear.pairs))
    arguments: Arguments = [
        0, 0, 1, words, pairs, group // (2 * PLANE), width // (2 * PLANE), exchanged, width, sums, x_scales,
        4 * sums.shape[1], out, 4 * LANES,
    ]  # fmt: skip
    return arguments, expected, out
