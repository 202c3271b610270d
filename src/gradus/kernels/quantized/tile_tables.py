"""Tables of the fastest tile for a product with a quantized matrix: measured per device, or chosen by a rule.

`benchmarks/kernels/quantized_linear.py --table` writes a device's file in `measured/` from what it measured: for each
scheme, each matrix [n, k] and each number of rows, the fastest tile, or null where the library was: for int4 the
widened matrix and cuBLAS, for 8 bits torch's own products (see `core/tuning.py`).

Without a file, a rule chooses tiles by their limit. Few rows are limited by bytes in flight: at least two programs per
multiprocessor, with shared sums where outputs are too few. Many rows are limited by the tensor cores: the largest tile
whose sums fit registers. The rule's tiles are not measured.
"""

from functools import cache
from typing import Literal, cast

import torch

from gradus.device.capability import capability, multiprocessors
from gradus.kernels.core import tuning
from gradus.kernels.quantized.tile import TileLaunch

Scheme = Literal["int4", "int8", "fp8", "fp8-block"]
SCHEMES: tuple[Scheme, ...] = ("int4", "int8", "fp8", "fp8-block")
ROWS = (1, 8, 16, 32, 64, 256, 8192)  # measured; others use the next larger, or else the last
PROGRAMS = 2  # per multiprocessor, at least
MOST_SPLITS = 8
FEWEST_TILES = 4  # of K per program: shorter loops are all prologue
UNPACKED_ROWS = 256  # up to here int4 is unpacked in registers
ALIGNED = 16  # torch's products need K and N to be multiples of this


class MeasuredTiles(tuning.Measured):
    """A device's file: launches by scheme."""

    package = "gradus.kernels.quantized"

    def choose(self, scheme: Scheme, m: int, n: int, k: int) -> TileLaunch | None:
        return cast(TileLaunch | None, self.nearest(scheme, min(m, self.rows[-1]), n, k))


@cache
def choose_tile(
    scheme: Scheme, m: int, n: int, k: int, dtype: torch.dtype, device: torch.device, *, gated: bool = False
) -> TileLaunch | None:
    """Choose how to multiply [m, k] by a matrix [n, k] of a scheme into dtype; None: by the library.

    gated: an output takes two rows of the matrix. Never chooses a library that cannot compute the product, or an int4
    tile that does not fit float32.
    """
    if scheme == "int4" and dtype == torch.float32 and m > 16:
        return None
    outputs = n // 2 if gated else n
    table = table_of(device)
    if table is not None and scheme in table.launches:
        launch = table.choose(scheme, m, n, k)
    else:
        launch = unmeasured(scheme, m, outputs, k, multiprocessors(device))
    if launch is None and not library_multiplies(scheme, m, n, k, dtype, device):
        return unmeasured_tile(scheme, m, outputs, k, multiprocessors(device))
    return launch


@cache
def table_of(device: torch.device) -> MeasuredTiles | None:
    return MeasuredTiles.of(device)


def library_multiplies(scheme: Scheme, m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch (for int4: cuBLAS, once the matrix is wide) has this product."""
    if scheme == "int4":
        return True
    if device.type != "cuda" or scheme == "fp8-block" or (n | k) % ALIGNED:
        return False
    if scheme == "int8":
        return m > ALIGNED
    return dtype == torch.bfloat16 and capability(device).major in (9, 10)


def unmeasured(scheme: Scheme, m: int, n: int, k: int, processors: int) -> TileLaunch | None:
    """Many rows of int4 and of fp8 to the library; integers would be written as 32 bits there, and read again."""
    if (scheme == "int4" and m > UNPACKED_ROWS) or (scheme == "fp8" and m > 64):
        return None
    return unmeasured_tile(scheme, m, n, k, processors)


def unmeasured_tile(scheme: Scheme, m: int, n: int, k: int, processors: int) -> TileLaunch:
    """A tile that fits every GPU from Ampere on, and does so twice at least. n: outputs."""
    if m > 256:
        stages = 2 if scheme == "int4" else 3
        return TileLaunch(rows=128, columns=128, tokens=128, splits=1, stages=stages, warps=8)
    fewest = 16 if scheme.startswith("fp8") else 8  # Triton converts e4m3 for narrower products on a Hopper
    tokens = min(max(fewest, 1 << (m - 1).bit_length()), 128)
    programs, tiles = -(-n // 64) * -(-m // tokens), -(-k // 128)
    most = MOST_SPLITS if m <= 64 else 2  # sums in memory are 8 bytes of traffic each
    splits = 1
    while programs * splits < PROGRAMS * processors and splits < most and tiles >= 2 * splits * FEWEST_TILES:
        splits *= 2
    stages = 4 if tokens <= 32 else 2 if scheme == "int4" and tokens == 128 else 3
    return TileLaunch(rows=64, columns=128, tokens=tokens, splits=splits, stages=stages, warps=4, ahead=2)
