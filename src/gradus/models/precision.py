"""The types that a model computes with: the caller's choice, the GPU's native type, or on a CPU the faster one.

Decoding one sequence reads every weight once per token, so on a CPU it runs at the speed of memory, and halving the
bytes of a weight could double it. Whether it does depends on the processor. Some have bfloat16 dot products; others
must widen each weight on the way. For one row, widening hides behind the memory's latency; for many rows it costs more
than a float32 product, and it is then faster to widen the matrix first and to multiply in float32. So two choices are
measured at start, in well under a second, on matrices of the model's own shape: the type of stored weights, and the
number of rows from which widening them first pays. Activations stay float32, which is also more accurate.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.device.transfer import numbered
from gradus.errors import ConfigError
from gradus.models.config import ModelConfig, parameter_count
from gradus.models.layers import Linear, LinearFactory, MatrixId

AS_ASKED = "as asked"  # the reason, if the caller chose the type
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """weights: their type in memory. activations: the type of computation and cache. reason: one phrase, for people.

    scheme: how matrices are quantized, if they are; `weights` is then the type of all other tensors.
    """

    weights: torch.dtype
    activations: torch.dtype
    linear: LinearFactory
    reason: str
    scheme: str | None = None

    @property
    def name(self) -> str:
        """For files: "bfloat16", or "bfloat16 weights, float32" where activations are wider."""
        weights, activations = (str(kind).removeprefix("torch.") for kind in (self.weights, self.activations))
        weights = self.scheme or weights
        return weights if weights == activations else f"{weights} weights, {activations}"

    @property
    def title(self) -> str:
        """For people: "bfloat16 weights, float32 activations"."""
        return f"{self.name} activations" if "," in self.name else self.name


class NarrowLinear(Linear):
    """Weights kept in bfloat16 for activations in float32.

    Few rows are multiplied as bfloat16, and the result stays bfloat16: the float32 residual stream widens it when it is
    added, which saves an operation per product.
    widen_from: from this number of rows on, the matrix is widened first and multiplied in float32.
    """

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        widen_from: int,
    ) -> None:
        super().__init__(matrix_id, in_features, out_features, bias, torch.bfloat16, device)
        self.widen_from = widen_from
        self.transposed = self.weight.t()  # a view, made once: at one row per step, every call counts
        if self.bias is not None:
            self.bias = torch.nn.Parameter(self.bias.to(dtype), requires_grad=False)  # a vector: nothing to save

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] >= self.widen_from:
            return widened_product(x, self.weight, self.bias)
        out = torch.mm(x.bfloat16(), self.transposed)
        return out if self.bias is None else out + self.bias


WIDENED = 1 << 20  # values that are widened at a time: 4 MB, which a processor's cache holds until they are multiplied


def widened_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b in float32 for a narrower W, piece by piece through the same small memory.

    Widening a whole matrix at once takes memory that is new to the cache, and often to the process, which is slower
    than the product itself.
    """
    scratch = _scratch()
    pieces = weight.split(max(1, scratch.numel() // weight.shape[1]))
    if len(pieces) == 1:
        return F.linear(x, _widen(weight, scratch), bias)
    out = x.new_empty(x.shape[0], weight.shape[0])
    for piece, columns in zip(pieces, out.split(pieces[0].shape[0], dim=1), strict=True):
        torch.mm(x, _widen(piece, scratch).t(), out=columns)
    return out if bias is None else out.add_(bias)


def _widen(weight: Tensor, scratch: Tensor) -> Tensor:
    if weight.numel() > scratch.numel():  # a single row is longer, which is rare; pieces then gain nothing
        return weight.float()
    return scratch[: weight.numel()].view_as(weight).copy_(weight)


_SCRATCH = threading.local()  # one per thread, so that two models may run side by side


def _scratch() -> Tensor:
    if not hasattr(_SCRATCH, "room"):
        with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside of it
            _SCRATCH.room = torch.empty(WIDENED)
    room: Tensor = _SCRATCH.room
    return room


def resolve_device(name: str) -> torch.device:
    """Accept auto, cpu, cuda, or a GPU by its number, as cuda:1; auto is a GPU if there is one.

    cuda without a number is the GPU that is current now; the result has the number. Raises ConfigError for a device
    that this machine lacks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: no CUDA GPU is usable here; `gradus doctor` says why, `cpu` always works")
    if device.index is not None and device.type == "cuda" and device.index >= (count := torch.cuda.device_count()):
        there = "the only GPU here is cuda:0" if count == 1 else f"the GPUs here are cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"device {name!r}: {there}")
    return numbered(device)


def resolve_precision(name: str, device: torch.device, config: ModelConfig) -> Precision:
    """Accept auto, float32, bfloat16 or float16. Raises ConfigError for any other name."""
    if name in DTYPES:
        return Precision(DTYPES[name], DTYPES[name], Linear, AS_ASKED)
    if name != "auto":
        raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}, got {name!r}")
    if device.type == "cuda":
        return Precision(torch.bfloat16, torch.bfloat16, Linear, "the GPU's native type")
    return measure_cpu(config)


def measure_cpu(config: ModelConfig) -> Precision:
    """Time one row through float32 and through bfloat16 weights, as many bytes as the model has (up to 256 MB).

    This happens once per process, so an engine that is built again keeps its precision, and with it its tokens.
    """
    shape = sum(config.up_widths), config.hidden_size
    count = max(2, min(4 * parameter_count(config), 256 << 20) // (4 * shape[0] * shape[1]))
    return _measured(shape, count, torch.get_num_threads())


@cache
def _measured(shape: tuple[int, int], count: int, threads: int) -> Precision:
    """Race `count` matrices of this shape in both types. threads: torch's, on which the result depends."""
    # not zeros: untouched pages of zeros are all one page of memory, and would be read from the cache
    wide = [torch.full(shape, 0.01) for _ in range(count)]
    narrow = [weight.bfloat16() for weight in wide]
    row = torch.full((1, shape[1]), 0.01)
    with torch.inference_mode():
        wide_s, narrow_s = _race(partial(_plain, row, wide), partial(_straight, row, narrow))
        if narrow_s >= wide_s:
            reason = f"measured: bfloat16 weights would take {narrow_s / wide_s:.2f} x as long"
            return Precision(torch.float32, torch.float32, Linear, reason)
        widen_from = _crossover(narrow[: max(1, (8 << 20) // narrow[0].nbytes)])
    reason = f"measured: float32 weights would take {wide_s / narrow_s:.2f} x as long"
    return Precision(torch.bfloat16, torch.float32, partial(NarrowLinear, widen_from=widen_from), reason)


def _crossover(weights: list[Tensor], most: int = 64) -> int:
    """The number of rows from which widening the matrix first is faster. Nothing is measured beyond `most` rows."""
    rows = 2
    while rows < most:
        x = torch.full((rows, weights[0].shape[1]), 0.01)
        straight, widened = _race(partial(_straight, x, weights), partial(_widened, x, weights))
        if widened < straight:
            return rows
        rows *= 2
    return 1 << 30


def _plain(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        F.linear(x, weight)


def _straight(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        F.linear(x.bfloat16(), weight).float()


def _widened(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        widened_product(x, weight)


def _race(*contenders: Callable[[], None], rounds: int = 5) -> list[float]:
    """Seconds of each contender's fastest run, which is the least disturbed one.

    They take turns, after a round to warm up, so that another process that is busy for a moment disturbs all alike.
    """
    best = [math.inf] * len(contenders)
    for round in range(rounds + 1):
        for i, run in enumerate(contenders):
            start = time.perf_counter()
            run()
            if round > 0:
                best[i] = min(best[i], time.perf_counter() - start)
    return best
