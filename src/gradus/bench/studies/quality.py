"""`gradus bench quality`: the distance between a quantized model's predictions and the original's.

Every model reads the same windows of a text. Its prediction of each token is compared with that of the same file in
float32 (divergence.py), which is far more sensitive than a test score. The first row is bfloat16, for weights and
activations, as models are commonly served. It is the yardstick: a scheme at no greater distance is indistinguishable
from ordinary rounding.

A scheme's row measures the scheme alone. Activations and unquantized matrices are float32, and products are plain
torch, without a cache or kernels. (Between models that all compute in bfloat16, rounding the logits is already a
divergence of 0.001, which hides smaller ones.)

AWQ and GPTQ read a text before they round: every fourth document, on which no model is judged. They and the methods
they are compared with round weights that were first taken off a 4-bit file's grid (`break_grid`).

The reference stays in memory with one other model at a time. Only hidden states are kept. Logits are computed for a few
positions at a time, because those of a whole text over a large vocabulary would not fit in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from gradus.attention.whole import WholeSequence
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.measure.fingerprint import fingerprint, hardware_name
from gradus.bench.measure.memory import release
from gradus.bench.measure.settings import Settings, Watcher
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Run
from gradus.bench.statistics import significant
from gradus.bench.studies import divergence, quality_text
from gradus.bench.studies.quality_report import NAME, TABLE
from gradus.bench.studies.quality_text import CONTEXT, WINDOW, Text, Window
from gradus.calibration.methods import METHODS, break_grid
from gradus.calibration.quantize import Recipe, quantize
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Progress, load_model, open_checkpoint
from gradus.loading.progress import Silent
from gradus.models import Linear, LinearFactory, Model, ModelConfig, parameter_count
from gradus.models.precision import resolve_device
from gradus.models.rope import RotaryTable
from gradus.quantization.linear import QuantizedLinear, rounded_planes
from gradus.quantization.mix import HEAD, NONE, Mix, factory

QUICK_WINDOWS, QUICK_SAMPLES = 4, 8
GROUP = 64  # weights per scale, for comparing rounding methods


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to keep a model's weights, or its keys and values. name: as reports and `--contender` have it.

    dtype: of activations and everything unquantized. linear: makes the matrices. scheme: their scheme's name, instead
    of linear; head: the head's. method: how `gradus quantize` rounds them to int4 in groups of GROUP, instead of both.
    fp8_kv: round keys and values as an 8-bit cache does.
    """

    name: str
    dtype: torch.dtype = torch.float32
    linear: LinearFactory = Linear
    scheme: str | None = None
    head: str = NONE
    method: str | None = None
    fp8_kv: bool = False

    def factory(self, config: ModelConfig) -> LinearFactory:
        """The factory for this model's matrices."""
        if self.scheme is None:
            return self.linear
        return factory(Mix(self.name, ((HEAD, self.head), ("*", self.scheme))), config, self.linear)


class RoundedActivations(Linear):
    """A float matrix that rounds each 32 activations to int8, as those of a .gguf file do on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(rounded_planes(x))


REFERENCE = Contender("float32")
YARDSTICK = Contender("bfloat16", torch.bfloat16)
CONTENDERS = (
    *(Contender(name, scheme=name) for name in ("int8", "fp8", "fp8-block", "int4")),
    Contender("fp8-head", scheme="fp8", head="fp8"),
    Contender("int4-head", scheme="int4", head="int8"),
    Contender("fp8-kv", fp8_kv=True),
    Contender("int8-activations", linear=RoundedActivations),
    *(Contender(f"int4-g{GROUP}-{method}", method=method) for method in METHODS),
)
"""The rows after YARDSTICK, compared with REFERENCE."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's output for the text: per window, the hidden states [n, D] that predict its n targets."""

    contender: Contender
    model: Model
    hidden: list[Tensor]


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(
    settings: Settings,
    text: Text,
    out: Path,
    watcher: Watcher,
    progress: Progress | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> Path:
    """Compare bfloat16, and then each contender, with float32. Returns the results, written after each.

    Raises ConfigError for settings of other benchmarks, an unknown contender, a model without a tokenizer or with
    quantized matrices, and a text that is too short. Raises CheckpointError as loading does.
    """
    wanted = _wanted(settings, contenders)
    reader = Reader.open(settings, text, watcher, progress)
    run, hardware = reader.begin(settings, text), hardware_name(reader.device)
    reference = reader.read(REFERENCE)
    for contender in (YARDSTICK, *wanted):
        release(reader.device)
        run.cells[0].entries.append(reader.entry(contender, reference))
        results.update(out, hardware, NAME, run)
    return results.path(out, hardware, NAME)


def _wanted(settings: Settings, contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders asked for by name, or all."""
    others = (settings.tables, settings.resume, not settings.peers, settings.repeats, settings.quantize)
    if any(others) or settings.dtype != "auto":
        raise ConfigError(
            f"`gradus bench {NAME}` runs each model once, in number types of its own: it takes --model, --device, "
            "--text, --contender, --quick and --out"
        )
    known = {contender.name: contender for contender in (YARDSTICK, *contenders)}
    for name in settings.contenders:
        if name not in known:
            raise ConfigError(f"contender must be one of {', '.join(known)}, got {name!r}")
    return [one for one in contenders if not settings.contenders or one.name in settings.contenders]


@dataclass(frozen=True, slots=True)
class Reader:
    """A checkpoint, the windows that all its models read, and the calibration text.

    samples: how many pieces of the calibration text are used.
    """

    checkpoint: Checkpoint
    device: torch.device
    windows: list[Window]
    watcher: Watcher
    progress: Progress
    calibration: str | None = None
    samples: int = QUICK_SAMPLES

    @classmethod
    def open(cls, settings: Settings, text: Text, watcher: Watcher, progress: Progress | None) -> "Reader":
        checkpoint, device = open_checkpoint(settings.model, progress=progress), resolve_device(settings.device)
        if checkpoint.tokenizer is None:
            raise ConfigError(f"{checkpoint.name}: came without a tokenizer, and quality is measured on text")
        if checkpoint.quantized is not None:
            raise ConfigError(
                f"{checkpoint.name}: is quantized ({checkpoint.quantized.label}): give what it was made of"
            )
        judged, calibration = quality_text.divided(text)
        found = quality_text.windows(judged, checkpoint.tokenizer, checkpoint.config.context_length)
        samples = Recipe().samples
        if settings.quick:
            found, samples = quality_text.first_of_each(found, QUICK_WINDOWS), QUICK_SAMPLES
        return cls(checkpoint, device, found, watcher, progress or Silent(), calibration, samples)

    def begin(self, settings: Settings, text: Text) -> Run:
        """A run with one cell: the text is the workload, and each contender is an entry."""
        documents, positions = self._documents()
        workload = {
            "what": (
                f"{len(self.windows)} windows of at most {WINDOW} tokens from {documents} documents of {text.name}: "
                f"{positions:,} positions count, and the first {CONTEXT} of each window are only context"
            ),
            "digest": text.digest,
            "text": text.name,
            "own": text.own,
            "documents": documents,
            "positions": positions,
        }
        return Run(
            model=self.checkpoint.name,
            dtype="",  # each contender has its own
            device=self.device.type,
            fingerprint=fingerprint(self.device, quick=settings.quick),
            settings={
                **settings.of_run(),
                "weights": f"{self.checkpoint.size_bytes / 1e6:.0f} MB as they are stored",
            },
            cells=[Cell(TABLE, text.name, 0, 1, workload)],
        )

    @torch.inference_mode()
    def read(self, contender: Contender) -> Reading:
        """Make the contender's model and have it read every window."""
        model = self._rounded(contender.method) if contender.method else self._loaded(self.checkpoint, contender)
        self.watcher.cell(contender.name, len(self.windows))
        attention = WholeSequence(model.config, contender.fp8_kv)
        hidden = []
        for window in self.windows:
            ids = torch.tensor(window.token_ids, device=self.device)
            rows = model(ids, torch.arange(len(ids), device=self.device), attention)
            hidden.append(rows[CONTEXT - 1 : -1])  # a row predicts the token after its own
            self.watcher.run_done()
        return Reading(contender, model, hidden)

    def _loaded(self, checkpoint: Checkpoint, contender: Contender) -> Model:
        linear = contender.factory(checkpoint.config)
        return load_model(checkpoint, dtype=contender.dtype, device=self.device, linear=linear, progress=self.progress)

    def _rounded(self, method: str) -> Model:
        """The model rounded by `gradus quantize`, from weights that are off the grid."""
        if method != "rtn" and self.calibration is None:
            raise ContenderFailed("a text of fewer than four documents leaves none to calibrate by")
        recipe = Recipe("int4", method, GROUP, self.samples)
        with TemporaryDirectory(prefix="gradus-quality-") as folder:
            out = Path(folder) / method
            quantize(
                self.checkpoint, out, recipe, self.calibration,
                device=self.device, progress=self.progress, prepare=break_grid,
            )  # fmt: skip
            written = open_checkpoint(str(out))
            assert written.quantized is not None
            return self._loaded(written, Contender(method, linear=factory(written.quantized, written.config, Linear)))

    def entry(self, contender: Contender, against: Reading) -> Entry:
        """A table's row: the model's size, and its distance from the other."""
        try:
            reading = self.read(contender)
            size = weight_bytes(reading.model)
            sample: dict[str, Any] = {
                "weight_bytes": size,
                "bits_per_weight": significant(8 * size / parameter_count(reading.model.config)),
            }
            return Entry(contender.name, samples=[sample | self._divergence(reading, against)])
        except (ContenderFailed, ConfigError) as error:
            return Entry(contender.name, skipped=str(error))

    @torch.inference_mode()
    def _divergence(self, reading: Reading, against: Reading) -> dict[str, float | None]:
        scores = divergence.join(
            divergence.compare_hidden(
                against.model.logits, before, reading.model.logits, after,
                torch.tensor(window.targets, device=self.device),
            )
            for window, before, after in zip(self.windows, against.hidden, reading.hidden, strict=True)
        )  # fmt: skip
        if not scores.kl.isfinite().all():
            raise ContenderFailed("its logits are not finite")
        documents = torch.tensor([window.document for window in self.windows for _ in window.targets])
        told = divergence.summarize(scores, documents)
        return {name: None if value is None else significant(value, 6) for name, value in told.items()}

    def _documents(self) -> tuple[int, int]:
        """The number of documents read, and of positions that count."""
        return len({window.document for window in self.windows}), sum(len(window.targets) for window in self.windows)


def weight_bytes(model: Model) -> int:
    """Bytes of a checkpoint: quantized matrices as the model keeps them, all other values in bfloat16.

    Shared tensors count once. Tables of rotary positions are computed.
    """
    tensors = {
        id(tensor): 2 * tensor.numel() if tensor.is_floating_point() and not isinstance(module, QuantizedLinear)
        else tensor.nbytes
        for module in model.modules()
        if not isinstance(module, RotaryTable)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }  # fmt: skip
    return sum(tensors.values())
