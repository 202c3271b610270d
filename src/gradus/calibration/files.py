"""The file format of quantized matrices: compressed-tensors, which vLLM and transformers load too.

    int4   weight_packed i32 [N, K / 8], weight_scale [N, G], weight_zero_point i32 [N / 8, G], weight_shape i64 [2]
    int8   weight int8 [N, K], weight_scale [N, 1]                    activations are rounded per token, at run time
    fp8    weight e4m3 [N, K], weight_scale [N, 1]                    the same

4-bit integers are stored plus 8, lowest nibble first; zero points are packed along rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.quantization.fp8 import to_fp8
from gradus.quantization.grid import Grid
from gradus.quantization.int8 import to_int8

NIBBLES = 8


def int4_tensors(values: Tensor, grid: Grid, dtype: torch.dtype) -> dict[str, Tensor]:
    """Make a matrix's tensors, by the ends of their names. values: 0 … 15 [N, K]. dtype: of scales."""
    return {
        "weight_packed": words(values),
        "weight_scale": grid.scales.to(dtype),
        "weight_zero_point": words(grid.zeros.t()).t().contiguous(),
        "weight_shape": torch.tensor(values.shape),
    }


def words(values: Tensor) -> Tensor:
    """Pack 0 … 15, [n, k] → int32 [n, ⌈k / 8⌉]."""
    nibbles = F.pad(values.long(), (0, -values.shape[1] % NIBBLES)).unflatten(1, (-1, NIBBLES))
    wide = (nibbles << 4 * torch.arange(NIBBLES, device=values.device)).sum(-1)
    return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).int()


def int8_tensors(weight: Tensor) -> dict[str, Tensor]:
    return dict(zip(("weight", "weight_scale"), to_int8(weight), strict=True))


def fp8_tensors(weight: Tensor) -> dict[str, Tensor]:
    return dict(zip(("weight", "weight_scale"), to_fp8(weight), strict=True))


def quantization_config(scheme: str, group: int | None, unquantized: list[str]) -> dict[str, Any]:
    """Describe the matrices for config.json. scheme: int4, int8 or fp8."""
    kind, bits = ("float" if scheme == "fp8" else "int"), int(scheme[-1])
    weights = {"num_bits": bits, "type": kind, "symmetric": bits == 8, "dynamic": False, "group_size": group}
    weights["strategy"] = "group" if group else "channel"
    tokens = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": True, "strategy": "token"}
    name = {"int4": "pack-quantized", "int8": "int-quantized", "fp8": "float-quantized"}[scheme]
    group_0 = {"targets": ["Linear"], "weights": weights, "input_activations": None if bits == 4 else tokens}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "config_groups": {"group_0": group_0},
        "ignore": unquantized,
    }
