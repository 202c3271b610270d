"""Totals of an engine's work since it was built. No torch here."""

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from gradus.cache.usage import CacheUsage
from gradus.engine.outputs import token_count
from gradus.engine.plan import Plan
from gradus.engine.sequence import Output


@dataclass(frozen=True, slots=True)
class Speculation:
    """The record of drafts. drafts: the most that one sequence has in the newest step; why: the reason.

    steps: summed over sequences. tokens: sampled in these steps. drafted, accepted: counts by position among a step's
    drafts.
    """

    drafts: int
    why: str
    steps: int
    tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of drafts that were accepted, by position."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)


@dataclass(slots=True)
class Metrics:
    """Totals since the engine was built, and its queue now. Each of a request's n samples counts as one.

    completed: ended by a stop token, a stop string or their length. failed: ended by an error. deadline_misses: ended
    because their deadline could not be met. cancelled: ended from outside, or by their timeout.
    preemptions: how often a running sequence was sent back to the queue.
    cached_tokens: prompt positions found in the prefix cache, and so not computed.
    batch_total, max_batch: sequences advanced, summed over all steps, and the most in one.
    rows, padding_rows: rows that the model computed, and how many of them were padding.
    busy_s: seconds of all steps, each from the end of the one before to its own. unshared_s: those of steps whose
    sequences had all ended before; all others are in the sequences' shares.
    cache: how full the pages are, in engines that have pages. speculation: None in engines that do not speculate.
    """

    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    deadline_misses: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    batch_total: int = 0
    max_batch: int = 0
    rows: int = 0
    padding_rows: int = 0
    busy_s: float = 0.0
    unshared_s: float = 0.0
    waiting: int = 0
    active: int = 0
    cache: CacheUsage | None = None
    speculation: Speculation | None = None

    @property
    def average_batch(self) -> float:
        return self.batch_total / self.steps if self.steps else 0.0

    def count_step(
        self, seconds: float, plan: Plan, rows: int, outputs: Ordered[Output], ended: Ordered[Output]
    ) -> None:
        """Count a committed step. rows: computed by the model, padding included. ended: `endings(outputs)`."""
        size = plan.size
        self.steps += 1
        self.busy_s += seconds
        self.batch_total += size
        self.max_batch = max(self.max_batch, size)
        self.rows += rows
        self.padding_rows += max(0, rows - plan.tokens)  # a step may have found fewer drafts than its plan allows
        self.generated_tokens += token_count(outputs)
        if ended:
            self.count_endings(ended)

    def count_endings(self, ended: Iterable[Output]) -> None:
        for output in ended:
            reason = output.finish_reason
            if reason in ("stop", "length"):
                self.completed += 1
            elif reason == "error":
                self.failed += 1
            elif reason == "deadline":
                self.deadline_misses += 1
            else:
                self.cancelled += 1
