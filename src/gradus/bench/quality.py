"""`gradus bench quality`: how far a quantized model's predictions are from those of the model it was made of.

Every model reads the same windows of a text, and two models are compared by their predictions of each token
(divergence.py). That is far more sensitive than the score of a test. A quantized model is compared with bfloat16, which
it would otherwise be served in; and before that, bfloat16 with float32 of the same file. That first row is the
yardstick: a scheme that is no farther from bfloat16 than bfloat16 is from float32 cannot be told from rounding.

Models run in plain torch, without a cache and without kernels: the scheme is measured, not an engine.

The reference stays in memory beside each of the others in turn. Only hidden states are kept of a text. Logits are
computed for a few positions at a time, because those of a whole text over a large vocabulary would not fit in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradus.attention.whole import WholeSequence
from gradus.bench import divergence, quality_text, results
from gradus.bench.fingerprint import commit as current_commit
from gradus.bench.fingerprint import fingerprint, hardware_name
from gradus.bench.measure import ContenderFailed
from gradus.bench.memory import release
from gradus.bench.quality_report import NAME, TABLE
from gradus.bench.quality_text import CONTEXT, WINDOW, Text, Window
from gradus.bench.results import Cell, Entry, Run
from gradus.bench.statistics import significant
from gradus.bench.suite import Settings, Watcher
from gradus.bench.workloads import SEED
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Progress, load_model, open_checkpoint
from gradus.models import Linear, LinearFactory, Model, ModelConfig, parameter_count
from gradus.models.precision import resolve_device
from gradus.models.rope import RotaryTable
from gradus.quantization.mix import Mix, factory

QUICK_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to keep a model's weights, or its keys and values. name: as reports and `--contender` have it.

    dtype: of activations, norms and embeddings. linear: makes the matrices. scheme: the same, by a scheme's name.
    fp8_kv: keys and values are rounded as a cache in 8 bits keeps them.
    """

    name: str
    dtype: torch.dtype
    linear: LinearFactory = Linear
    scheme: str | None = None
    fp8_kv: bool = False

    def factory(self, config: ModelConfig) -> LinearFactory:
        """For the matrices of this model."""
        return self.linear if self.scheme is None else factory(Mix.of(self.scheme), config, self.linear)


EXACT = Contender("float32", torch.float32)
REFERENCE = Contender("bfloat16", torch.bfloat16)
CONTENDERS = (
    *(Contender(name, torch.bfloat16, scheme=name) for name in ("int8", "fp8", "fp8-block", "int4")),
    Contender("fp8-kv", torch.bfloat16, fp8_kv=True),
)
"""What is compared with REFERENCE; REFERENCE itself is compared with EXACT."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one model made of the text: of each window the hidden states [n, D] that predict its n targets."""

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
    """Compare bfloat16 with float32, then each contender with bfloat16. Returns the results, written after each.

    Raises ConfigError for settings that are for other benchmarks, a contender that is not among these, a model without
    a tokenizer, and a text that is too short; CheckpointError as loading does.
    """
    wanted = _wanted(settings, contenders)
    reader = Reader.open(settings, text, watcher, progress)
    run, hardware = reader.begin(settings, text), hardware_name(reader.device)
    entries = run.cells[0].entries
    reference = reader.read(REFERENCE)
    exact = reader.read(EXACT)
    entries.append(reader.entry(reference, against=exact))
    del exact
    results.update(out, hardware, NAME, run)
    for contender in wanted:
        release(reader.device)
        entries.append(reader.entry(reader.read(contender), against=reference))
        results.update(out, hardware, NAME, run)
    return results.path(out, hardware, NAME)


def _wanted(settings: Settings, contenders: Sequence[Contender]) -> list[Contender]:
    """Those that were asked for by name, or all."""
    others = (settings.tables, settings.resume, not settings.peers, settings.repeats, settings.quantize)
    if any(others) or settings.dtype != "auto":
        raise ConfigError(
            f"`gradus bench {NAME}` runs each model once, in number types of its own: it takes --model, --device, "
            "--text, --contender, --quick and --out"
        )
    known = {contender.name: contender for contender in (REFERENCE, *contenders)}
    for name in settings.contenders:
        if name not in known:
            raise ConfigError(f"contender must be one of {', '.join(known)}, got {name!r}")
    return [one for one in contenders if not settings.contenders or one.name in settings.contenders]


@dataclass(frozen=True, slots=True)
class Reader:
    """A checkpoint, and the windows that every model made of it reads."""

    checkpoint: Checkpoint
    device: torch.device
    windows: list[Window]
    watcher: Watcher
    progress: Progress | None

    @classmethod
    def open(cls, settings: Settings, text: Text, watcher: Watcher, progress: Progress | None) -> "Reader":
        checkpoint, device = open_checkpoint(settings.model, progress=progress), resolve_device(settings.device)
        if checkpoint.tokenizer is None:
            raise ConfigError(f"{checkpoint.name}: came without a tokenizer, and quality is measured on text")
        found = quality_text.windows(text, checkpoint.tokenizer, checkpoint.config.context_length)
        if settings.quick:
            found = quality_text.first_of_each(found, QUICK_WINDOWS)
        return cls(checkpoint, device, found, watcher, progress)

    def begin(self, settings: Settings, text: Text) -> Run:
        """A run with one cell: a text is the workload, and each contender an entry."""
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
                "commit": settings.commit or current_commit(),
                "seed": SEED,
                "quick": settings.quick,
                "threads": torch.get_num_threads(),
                "float32 products": torch.get_float32_matmul_precision(),
                "weights": f"{self.checkpoint.size_bytes / 1e6:.0f} MB as they are stored",
            },
            cells=[Cell(TABLE, text.name, 0, 1, workload)],
        )

    @torch.inference_mode()
    def read(self, contender: Contender) -> Reading:
        """Make the contender's model and have it read every window."""
        linear = contender.factory(self.checkpoint.config)
        model = load_model(
            self.checkpoint, dtype=contender.dtype, device=self.device, linear=linear, progress=self.progress
        )
        self.watcher.cell(contender.name, len(self.windows))
        attention = WholeSequence(model.config, contender.fp8_kv)
        hidden = []
        for window in self.windows:
            ids = torch.tensor(window.token_ids, device=self.device)
            rows = model(ids, torch.arange(len(ids), device=self.device), attention)
            hidden.append(rows[CONTEXT - 1 : -1])  # a row predicts the token after its own
            self.watcher.run_done()
        return Reading(contender, model, hidden)

    def entry(self, reading: Reading, against: Reading) -> Entry:
        """The row of a table: what the model weighs, and how far it is from the other."""
        size = weight_bytes(reading.model)
        sample: dict[str, Any] = {
            "against": against.contender.name,
            "weight_bytes": size,
            "bits_per_weight": significant(8 * size / parameter_count(reading.model.config)),
        }
        try:
            return Entry(reading.contender.name, samples=[sample | self._divergence(reading, against)])
        except ContenderFailed as error:
            return Entry(reading.contender.name, skipped=str(error))

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
        """How many documents are read, and how many positions count."""
        return len({window.document for window in self.windows}), sum(len(window.targets) for window in self.windows)


def weight_bytes(model: Model) -> int:
    """What a checkpoint fills, as the model keeps it; shared tensors once. Tables of rotary positions are computed."""
    tensors = {
        id(tensor): tensor
        for module in model.modules()
        if not isinstance(module, RotaryTable)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }
    return sum(tensor.nbytes for tensor in tensors.values())
