"""Kernels in Triton: one file per operation, each with its idea, its shapes, and the bytes it moves.

Beside the kernels of each room is what they must compute, in torch; what begins and ends a step is in numpy, and a
CPU's steps run it. Only what launches kernels imports them: without a GPU, Triton need not be installed. Read the rooms
in this order:

    core/       launches that overlap, compilation, modules with other forward passes
    rows/       one pass over rows: norms, activations, rotation
    linear/     products of 16-bit matrices with few rows
    quantized/  products of quantized matrices
    experts/    products with the matrices that a router chose
    attention/  paged attention and how its work is divided
    sampling/   logits to tokens
    step/       how a step begins and ends on the device; drafts
    fuse/       the kernels under a model
    cpu/        a processor's kernels, in numba
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gradus.errors import ConfigError

if TYPE_CHECKING:
    import torch

INTERPRET = "TRITON_INTERPRET"  # Triton's own variable


def missing(device: str) -> str | None:
    """Say in a phrase why the kernels cannot run on a device ("cuda", "cuda:1", "cpu"); None if they can."""
    if not device.startswith("cuda"):
        return f"the model is on the {device}, and Triton's kernels need a CUDA GPU"
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with torch's CUDA build)"
    import torch  # here: this package is imported where torch is not

    from gradus.device.capability import OLDEST, capability

    if torch.cuda.is_available() and not (able := capability(torch.device(device))).runs_kernels:
        return f"the GPU has compute capability {able}, and Triton's kernels need {OLDEST} or newer"
    return None


def interpreted() -> bool:
    """Whether Triton was asked to run kernels as Python, on the CPU, and is there to do so. It reads the variable when
    it is imported."""
    return os.environ.get(INTERPRET) == "1" and find_spec("triton") is not None


def check_kv_dtype(kv_dtype: str, device: "torch.device", kernels: bool) -> None:
    """Raise ConfigError if the kernels will run and cannot read a cache of this type."""
    if kv_dtype != "fp8" or not kernels or missing(str(device)):
        return
    from gradus.device.capability import capability

    if not (able := capability(device)).multiplies_fp8:
        raise ConfigError(
            f"kv_dtype fp8 needs a GPU of compute capability 8.9 or later, {device} has {able}: leave it out, or run "
            "without kernels and graphs (switch_off)"
        )
