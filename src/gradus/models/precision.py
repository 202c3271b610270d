"""The types that a model computes with: the caller's choice, the GPU's native type, or on a CPU the faster one.

Decoding one sequence reads every weight once per token, so on a CPU it runs at the speed of memory, and halving the
bytes of a weight could double it. Whether it does depends on the processor. Some have bfloat16 dot products; others
must widen each weight on the way. For one row, widening hides behind the memory's latency; for many rows it costs more
than a float32 product, and it is then faster to widen the matrix first and to multiply in float32. So two choices are
measured at start, in well under a second, on matrices of the model's own shape: the number of rows from which widening
pays, and the type of stored weights, by the time for a request of REQUEST tokens in and as many out. Activations stay
float32, which is also more accurate.

A type that the caller names is taken. bfloat16's prompts are then widened too where that pays, and if a prompt is
nevertheless much slower than in float32, one line says so.
"""

import logging
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

log = logging.getLogger(__name__)

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


ELSEWHERE = Precision(torch.float32, torch.float32, Linear, "another process has the weights")
"""Stands in where no weights are loaded."""


class NarrowLinear(Linear):
    """Weights kept in bfloat16 for activations in float32 or bfloat16.

    Few rows are multiplied as bfloat16, and the result stays bfloat16: a float32 residual stream widens it when it is
    added, which saves an operation per product.
    widen_from: from this number of rows on, the matrix is widened first and multiplied in float32. bfloat16 activations
    are widened as well and the result is rounded, as a product of bfloat16 does: sums are float32 either way.
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

    def part(self, first: int, end: int) -> Linear:
        part = super().part(first, end)
        part.transposed = part.weight.t()
        return part

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] >= self.widen_from:
            bias = None if self.bias is None else self.bias.float()
            out = widened_product(x.float(), self.weight, bias)
            return out if x.dtype == torch.float32 else out.to(x.dtype)
        if x.dtype == torch.bfloat16:
            return super().forward(x)
        out = torch.mm(x.bfloat16(), self.transposed)
        return out if self.bias is None else out + self.bias


WIDENED = 1 << 20  # values that are widened at a time: 4 MB, which a processor's cache holds until they are multiplied


def widened_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b in float32 for a narrower W, floats or integers, piece by piece through the same small memory.

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
    if name in DTYPES and device.type == "cpu" and name != "float32":
        return _asked_on_cpu(name, config)
    if name in DTYPES:
        return Precision(DTYPES[name], DTYPES[name], Linear, AS_ASKED)
    if name != "auto":
        raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}, got {name!r}")
    if device.type == "cuda":
        return Precision(torch.bfloat16, torch.bfloat16, Linear, "the GPU's native type")
    return measure_cpu(config)


SLOW = 1.5
"""Times float32's time for a prompt from which a type that was asked for is called slow."""


def _asked_on_cpu(name: str, config: ModelConfig) -> Precision:
    """Take a 16-bit type at the caller's word. Warns, once per process, where its prompts are slow."""
    kind = DTYPES[name]
    widen_from, ratio = _prompts_in(kind, _shape(config), torch.get_num_threads())
    if ratio >= SLOW:
        _warn(f"dtype {name}: on this processor a prompt takes {ratio:.1f} x as long as in float32 (measured)")
    narrow = kind == torch.bfloat16 and widen_from < NEVER
    return Precision(kind, kind, partial(NarrowLinear, widen_from=widen_from) if narrow else Linear, AS_ASKED)


@cache
def _warn(text: str) -> None:
    log.warning(text)


@cache
def _prompts_in(kind: torch.dtype, shape: tuple[int, int], threads: int) -> tuple[int, float]:
    """The number of rows from which bfloat16 weights of this shape are better widened, and the time of a prompt's
    product in this type as a multiple of float32's. threads: torch's, on which both depend."""
    wide = torch.full(shape, 0.01)
    narrow = wide.to(kind)
    with torch.inference_mode():
        widen_from = _crossover([narrow]) if kind == torch.bfloat16 else NEVER
        x = torch.full((PROMPT, shape[1]), 0.01)
        mine = partial(_widened, x, [narrow]) if widen_from < NEVER else partial(_plain, x.to(kind), [narrow])
        wide_s, narrow_s = race(partial(_plain, x, [wide]), mine, rounds=2)
    return widen_from, narrow_s / wide_s


def widens_prompts(config: ModelConfig) -> bool:
    """Whether bfloat16 prompts are faster on this processor when they are multiplied in float32 (measured)."""
    return _prompts_in(torch.bfloat16, _shape(config), torch.get_num_threads())[0] <= PROMPT


def _shape(config: ModelConfig) -> tuple[int, int]:
    experts = next((each for each in config.experts if each is not None), None)
    rows = max(config.layer(layer).intermediate_size for layer in range(config.num_layers))
    return (2 if config.gated else 1) * (rows if experts is None else experts.width), config.hidden_size


def measure_cpu(config: ModelConfig) -> Precision:
    """Time rows through float32 and through bfloat16 weights, as many bytes as the model has (up to 256 MB).

    This happens once per process, so an engine that is built again keeps its precision, and with it its tokens.
    """
    shape = _shape(config)
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
        wide_s, narrow_s = race(partial(_plain, row, wide), partial(_straight, row, narrow))
        if narrow_s >= wide_s:
            reason = f"measured: bfloat16 weights would take {narrow_s / wide_s:.2f} x as long"
            return Precision(torch.float32, torch.float32, Linear, reason)
        few = max(1, (8 << 20) // narrow[0].nbytes)
        widen_from = _crossover(narrow[:few])
        prompt = torch.full((PROMPT, shape[1]), 0.01)
        way = _widened if widen_from <= PROMPT else _straight
        prompts = race(partial(_plain, prompt, wide[:few]), partial(way, prompt, narrow[:few]), rounds=2)
    all_of_them = len(wide) / len(wide[:few])
    wide_s, narrow_s = (
        REQUEST * row_s + all_of_them * REQUEST / PROMPT * prompt_s
        for row_s, prompt_s in zip((wide_s, narrow_s), prompts, strict=True)
    )
    if narrow_s >= wide_s:
        reason = f"measured: bfloat16 weights would take {narrow_s / wide_s:.2f} x as long, prompt and decode"
        return Precision(torch.float32, torch.float32, Linear, reason)
    reason = f"measured: float32 weights would take {wide_s / narrow_s:.2f} x as long"
    return Precision(torch.bfloat16, torch.float32, partial(NarrowLinear, widen_from=widen_from), reason)


NEVER = 1 << 30
PROMPT = 128
"""Rows of a prompt's product that is measured."""

REQUEST = 256
"""Tokens of the prompt, and of the answer, of the request by whose time a type is chosen."""


def _crossover(weights: list[Tensor], most: int = 64) -> int:
    """The number of rows from which widening the matrix first is faster. Nothing is measured beyond `most` rows."""
    rows = 2
    while rows < most:
        x = torch.full((rows, weights[0].shape[1]), 0.01)
        straight, widened = race(partial(_straight, x, weights), partial(_widened, x, weights))
        if widened < straight:
            return rows
        rows *= 2
    return NEVER


def _plain(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        F.linear(x, weight)


def _straight(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        F.linear(x.bfloat16(), weight).float()


def _widened(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        widened_product(x, weight)


def race(*contenders: Callable[[], object], rounds: int = 5) -> list[float]:
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
