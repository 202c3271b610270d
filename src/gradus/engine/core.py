"""What a front end asks of an engine: token ids in, token ids out. No torch here.

A front end (`gradus.text`) turns text into requests and outputs into text. It may run in the engine's own process, as
in `LLM`, or elsewhere, as in the server. So whatever crosses this line is plain data: `Request` goes in, `Output` and
`Metrics` come out, and each can be copied, packed and sent.
"""

from collections.abc import Sequence
from typing import Protocol

from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output


class Core(Protocol):
    """An engine, as its owner sees it. Not thread-safe: one thread makes every call."""

    @property
    def limits(self) -> ModelLimits:
        """What requests must respect: `Request.create` checks it."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""

    @property
    def waiting_count(self) -> int:
        """Samples that wait to start. As `metrics` has it, for a caller that asks after every step."""

    def submit(self, request: Request) -> None:
        """Queue a request, its n samples at once. Its id must not be in use.

        Raises RequestError, keeping nothing, if it could never be served.
        """

    def step(self) -> Sequence[Output]:
        """Advance what runs by one step. Returns what is new, the outputs of a sample in their order.

        A sample's last output has a finish_reason and its timings. An exception means that the core is broken.
        """

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> Sequence[Output]:
        """End a request, or one sample of it, with `reason` as its finish_reason.

        Returns the last output of each sample that this ended; none where they had ended before.
        """

    def metrics(self) -> Metrics:
        """Totals and the queue now, as a snapshot."""

    def check(self) -> None:
        """Assert the invariants of queue and cache. Costs more than a step: for tests and idle servers."""
