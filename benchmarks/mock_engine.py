"""An engine that computes nothing: every step gives each running sequence one token, drawn before the start.

A server's loader, as `gradus.server.engine.loading` is one: the front end has a real tokenizer, and the messages are
those of the final engine. So whatever a benchmark of such a server measures is the front end's, on any machine. No
torch here.

    MOCK_STEP_S     seconds from the beginning of a step to that of the next; 0: as fast as the front end takes reports
    MOCK_TOKENS     a file of text whose tokens are the answers, over and over; without it, they are random ids
"""

import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradus.engine.metrics import Metrics
from gradus.engine.outputs import Outputs
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output, Timings
from gradus.loading import Progress
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo

IDS = 49_000  # random tokens are drawn from these: all tokenizers here have them
CONTEXT, SEQUENCES = 4096, 256


@dataclass(slots=True, eq=False)
class Running:
    """A sample that runs. Its tokens are those of the list from `place` on."""

    request_id: str
    index: int
    left: int
    place: int
    arrived: float
    first: float = 0.0


@dataclass
class MockCore:
    """Runs SEQUENCES samples at once, first come first served."""

    limits: ModelLimits
    ids: Any  # [many] int64
    step_s: float = 0.0
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    totals: Metrics = field(default_factory=Metrics)
    _next: float = 0.0
    _columns: Any = None  # owners and places of `running`, until it changes

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    def submit(self, request: Request) -> None:
        for index in range(request.params.n):
            place = (request.seed + 7919 * index) % len(self.ids)
            self.waiting.append(Running(request.id, index, request.max_tokens, place, time.monotonic()))

    def step(self) -> Outputs:
        self._pace()
        outputs = Outputs()
        if self.running:
            self._decode(outputs)
        while self.waiting and len(self.running) < SEQUENCES:
            self._begin(self.waiting.popleft(), outputs)
        self.totals.steps += 1
        self.totals.batch_total += len(self.running)
        return outputs

    def _pace(self) -> None:
        if self.step_s:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = max(self._next, time.monotonic() - self.step_s) + self.step_s

    def _decode(self, outputs: Outputs) -> None:
        if self._columns is None:
            owners = np.empty(len(self.running), object)
            owners[:] = self.running
            self._columns = owners, np.array([each.place for each in self.running])
        owners, places = self._columns
        places += 1
        outputs.owners, outputs.tokens = owners, self.ids[places % len(self.ids)][:, None]
        for row, sample in enumerate(self.running):
            sample.left -= 1
            if not sample.left:
                outputs.exceptional.append(row)
                outputs.others.append(self._last(sample, int(outputs.tokens[row, 0])))
        if outputs.exceptional:
            self._keep([sample for sample in self.running if sample.left])

    def _keep(self, samples: list[Running]) -> None:
        if self._columns is not None:
            for sample, place in zip(*self._columns, strict=True):
                sample.place = int(place)
        self.running, self._columns = samples, None

    def _begin(self, sample: Running, outputs: Outputs) -> None:
        self._keep([*self.running, sample])
        sample.first = time.monotonic()
        sample.left -= 1
        token = int(self.ids[sample.place % len(self.ids)])
        if sample.left:
            outputs.others.append(Output(sample.request_id, sample.index, (token,)))
        else:
            outputs.others.append(self._last(sample, token))
            self.running.pop()

    def _last(self, sample: Running, *tokens: int, reason: str = "length") -> Output:
        self.totals.completed += 1
        now = time.monotonic()
        timings = Timings(0.0, sample.first - sample.arrived, now - sample.arrived, 2, 0.0)
        return Output(sample.request_id, sample.index, tokens, finish_reason=reason, timings=timings)

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> list[Output]:
        meant = [
            sample for sample in (*self.running, *self.waiting)
            if sample.request_id == request_id and index in (None, sample.index)
        ]  # fmt: skip
        self._keep([sample for sample in self.running if sample not in meant])
        self.waiting = deque(sample for sample in self.waiting if sample not in meant)
        return [self._last(sample, reason=reason) for sample in meant]

    def metrics(self) -> Metrics:
        found = Metrics(**{name: getattr(self.totals, name) for name in Metrics.__slots__})
        found.waiting, found.active = len(self.waiting), len(self.running)
        return found

    def device_seconds(self) -> list[tuple[str, int, float]]:
        return [(sample.request_id, sample.index, 0.0) for sample in self.running]

    def check(self) -> None:
        assert not self.has_work


def open_tokenizer(config: ServerConfig, progress: Progress | None = None) -> Any:
    from gradus.loading import open_tokenizer as opened

    return opened(config.model)


def load_engine(config: ServerConfig, progress: Progress | None = None) -> tuple[MockCore, ModelInfo]:
    limits = ModelLimits(vocab_size=151_936, context_length=CONTEXT)
    if file := os.environ.get("MOCK_TOKENS"):
        ids = np.array(open_tokenizer(config).encode(Path(file).read_text(encoding="utf-8")))
    else:
        ids = np.random.default_rng(0).integers(0, IDS, 100_003)
    core = MockCore(limits, ids, float(os.environ.get("MOCK_STEP_S", 0)))
    settings = {"max_sequences": SEQUENCES}
    return core, ModelInfo(config.model, "mock", None, "cpu", "float32", limits, settings)
