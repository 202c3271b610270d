"""What an engine has done since it was built, in totals. No torch here."""

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from gradus.cache.usage import CacheUsage
from gradus.engine.outputs import endings, token_count
from gradus.engine.plan import Plan
from gradus.engine.sequence import Output


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafts have come to. drafts: the most of a sequence in the newest step; why: the reason.

    steps: of each sequence, summed. tokens: that these brought. By position among a step's drafts: drafted, accepted.
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
        """By position: how many of the drafts stood."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)


@dataclass(slots=True)
class Metrics:
    """Totals since the engine was built, and its queue now. A request's n samples count one each.

    completed: ended by a stop token, a stop string or their length. failed: ended by an error. deadline_misses: ended
    because their deadline could not be met. cancelled: ended from outside, or by their timeout.
    preemptions: how often a running sequence was sent back to the queue.
    cached_tokens: prompt positions that were not computed, because the prefix cache had them.
    batch_total, max_batch: sequences advanced, summed over all steps, and the most in one.
    rows, padding_rows: what the model computed, and how much of it was padding.
    cache: how full the pages are, in engines that have pages. speculation: in engines that speculate.
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
    waiting: int = 0
    active: int = 0
    cache: CacheUsage | None = None
    speculation: Speculation | None = None

    @property
    def average_batch(self) -> float:
        return self.batch_total / self.steps if self.steps else 0.0

    def count_step(self, plan: Plan, rows: int, outputs: Ordered[Output]) -> None:
        """Take in a committed step, for which the model computed so many rows."""
        self.steps += 1
        self.batch_total += plan.size
        self.max_batch = max(self.max_batch, plan.size)
        self.rows += rows
        self.padding_rows += max(0, rows - plan.tokens)  # a step may have found fewer drafts than its plan allows
        self.generated_tokens += token_count(outputs)
        self.count_endings(endings(outputs))

    def count_endings(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            if reason in ("stop", "length"):
                self.completed += 1
            elif reason == "error":
                self.failed += 1
            elif reason == "deadline":
                self.deadline_misses += 1
            else:
                self.cancelled += 1
