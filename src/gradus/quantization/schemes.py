"""The schemes by name, and the device that each requires."""

from functools import partial

import torch

from gradus.device.capability import capability
from gradus.errors import ConfigError
from gradus.models.layers import Linear, LinearFactory, MatrixId
from gradus.quantization.fp8 import Fp8BlockLinear, Fp8Linear
from gradus.quantization.gguf import FORMATS, GGUFLinear
from gradus.quantization.int4 import GROUPS, Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mxfp4 import Mxfp4Linear

ORDERED = "-ordered"
MXFP4 = "mxfp4"


IN_BLOCKS = partial(GGUFLinear, format=MXFP4, from_file=False)


def _mxfp4(
    matrix_id: MatrixId,
    in_features: int,
    out_features: tuple[int, ...],
    bias: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Linear:
    """Make a matrix of blocks on a CPU, and of words elsewhere: see `mxfp4.py`."""
    if torch.device(device).type == "cpu":
        return IN_BLOCKS(matrix_id, in_features, out_features, bias, dtype, device)
    return Mxfp4Linear(matrix_id, in_features, out_features, bias, dtype, device)


SCHEMES: dict[str, LinearFactory] = {
    "int8": Int8Linear,
    "fp8": Fp8Linear,
    "fp8-block": Fp8BlockLinear,
    "int4": Int4Linear,
    **{f"int4-g{group}": partial(Int4Linear, group=group) for group in GROUPS},
    MXFP4: _mxfp4,
}

STORED: dict[str, LinearFactory] = SCHEMES | {
    **{name: partial(GGUFLinear, format=name) for name in FORMATS if name not in SCHEMES},
    **{f"int4-g{group}{ORDERED}": partial(Int4Linear, group=group, ordered=True) for group in GROUPS},
}
"""These schemes, and those that only a checkpoint may be stored in."""

AS_STORED = "stored"
"""Requested like a scheme: matrices that a file has packed stay packed as stored."""


def check_device(scheme: str, device: torch.device) -> None:
    """Raise ConfigError if a GPU has no arithmetic for the scheme's numbers."""
    if scheme.startswith("fp8") and device.type == "cuda":
        found = capability(device)
        if not found.multiplies_fp8:
            raise ConfigError(
                f"{scheme} needs a GPU of compute capability 8.9 or later, this one has {found}: int8 and int4 run"
            )
