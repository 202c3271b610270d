"""The engine's interface to a front end: token ids in, token ids out. No torch here.

A front end (`gradus.text`) turns text into requests and outputs into text. It may run in the engine's own process, as
in `LLM`, or elsewhere, as in the server. So only plain data crosses the interface: `Request` goes in, `Output` and
`Metrics` come out, and each can be copied, packed and sent.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output
from gradus.engine.structured import Structured


class Compiler(Protocol):
    """Compiles the constraints of requests. Safe to call from several threads.

    A step that admits a request needs its compiled constraint, and compiles it if it is not there. An owner that calls
    `hold` before `submit`, and `release` after the request's end, keeps that out of all steps.
    """

    def hold(self, structured: Structured) -> None:
        """Compile a constraint, and keep the result until `release`. The owner bounds their number.

        Raises RequestError, and holds nothing, if it can't be kept.
        """

    def hold_compiled(self, structured: Structured) -> bool:
        """Hold a constraint if that takes no time. Returns False, holding nothing, if it must be compiled."""

    def release(self, structured: Structured) -> None:
        """Undo one `hold`. Does nothing if none is left."""


@runtime_checkable
class Compiles(Protocol):
    """A core in its owner's process that also lets constraints be compiled early."""

    @property
    def compiler(self) -> Compiler | None:
        """Compiles requests' constraints; None for an engine that compiles nothing before it needs it."""


class Parts(Protocol):
    """The parts that a watcher looks at between two steps: an engine's scheduler, with its cache, and its runner."""

    scheduler: Any
    runner: Any


@runtime_checkable
class Watchable(Protocol):
    """A core in its owner's process that can be watched."""

    @property
    def parts(self) -> Parts | None:
        """The parts to look at; None for an engine that shows none."""


class Core(Protocol):
    """An engine, as its owner sees it. Not thread-safe: one thread makes every call."""

    @property
    def limits(self) -> ModelLimits:
        """The limits of the model, which `Request.create` checks."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""

    @property
    def waiting_count(self) -> int:
        """The number of samples that wait to start, as in `metrics`: for a caller that asks after every step."""

    def submit(self, request: Request) -> None:
        """Queue a request, its n samples at once. Its id must not be in use.

        Raises RequestError, keeping nothing, if it could never be served.
        """

    def step(self) -> Sequence[Output]:
        """Advance all running sequences by one step. Returns the new outputs, those of each sample in order.

        A sample's last output has a finish_reason and its timings. An exception means that the core is broken.
        """

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> Sequence[Output]:
        """End a request, or one sample of it, with `reason` as its finish_reason.

        Returns the last output of each sample that this call ended; none for samples that had ended before.
        """

    def metrics(self) -> Metrics:
        """Return a snapshot: totals, and the queue now."""

    def device_seconds(self) -> Sequence[tuple[str, int, float]]:
        """List what each sample that has begun and not ended has used of the device: (request id, index, seconds).
        A sample's last share is in the timings of its last output."""

    def check(self) -> None:
        """Assert the invariants of queue and cache. Costs more than a step: for tests and idle servers."""
