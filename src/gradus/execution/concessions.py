"""What an engine does without on a small GPU, or on one that is shared, so that a cache worth having is left.

The defaults suit a GPU with memory to spare: steps of 8,192 tokens, 256 sequences, a graph for every batch size. Their
memory is the cache's loss. So where a default leaves no cache worth having, it gives way, one step of the ladder at a
time, what costs least first. A cache is worth having once it holds a request of `LONG` tokens, or of the whole context
if that is shorter, and `EACH` tokens for every sequence that may run.

What somebody has set never gives way: it is not among the options' `yielding`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gradus.config.options import EngineConfig
from gradus.execution.memory import DeviceMemory

LONG, EACH = 2048, 256

LADDER: tuple[tuple[str, Any], ...] = (
    # A step of 2,048 tokens keeps a GPU nearly as busy as one of 8,192, and computes with a quarter of the memory.
    ("token_budget", 4096),
    ("token_budget", 2048),
    # Logits, penalties and graphs are per sequence. A crowd waits longer, and fewer rows share the weights' way.
    ("max_sequences", 128),
    ("max_sequences", 64),
    # From here on prompts are read more slowly; with the budget go the graphs of longer prompts.
    ("token_budget", 1024),
    ("max_sequences", 32),
    ("token_budget", 512),
    ("max_sequences", 16),
    ("token_budget", 256),
    ("max_sequences", 8),
    # Without graphs each decode step waits for the host, several times as long where the model is small.
    ("graphs", False),
)
SHARED = 0.01  # of a GPU's memory: what a higher memory_fraction must gain


@dataclass(frozen=True)
class Concession:
    """A setting that nobody set, and what it became instead of its default."""

    setting: str
    default: Any
    became: Any

    def __str__(self) -> str:
        if isinstance(self.became, bool):
            return f"no {self.setting}"
        return f"{self.setting} {self.became:g} instead of {self.default:g}"


def descending(options: EngineConfig, memory: DeviceMemory) -> Iterator[EngineConfig]:
    """The options as they are, then with one concession more each time."""
    yield options
    shared = _of_what_is_free(options, memory)
    if shared is not None:
        options = replace(options, memory_fraction=shared)
        yield options
    for name, value in LADDER:
        if _gives_way(options, name, value):
            options = replace(options, **{name: value})
            yield options


def _gives_way(options: EngineConfig, name: str, value: int) -> bool:
    if name == "token_budget" and (not options.chunked or value < 2 * options.max_sequences):
        return False  # nothing is cut, or decodes would leave prompts less than half of a step
    return name in options.yielding and getattr(options, name) > value


def _of_what_is_free(options: EngineConfig, memory: DeviceMemory) -> float | None:
    """The memory_fraction that leaves unused, of what other processes have left, the part that was meant of the whole.

    Otherwise a tenth of a large GPU would lie idle, with none of it to take. None where that is hardly more.
    """
    fraction = options.memory_fraction
    if fraction is None or memory.total is None or "memory_fraction" not in options.yielding:
        return None
    shared = 1 - (1 - fraction) * memory.free / memory.total
    return int(shared * 10_000) / 10_000 if shared >= fraction + SHARED else None


def conceded(before: EngineConfig, after: EngineConfig) -> tuple[Concession, ...]:
    """What became of the first on the way to the second."""
    names = dict.fromkeys(("memory_fraction", *(name for name, _ in LADDER)))
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return tuple(Concession(name, default, became) for name, default, became in pairs if default != became)


def worth_having(options: EngineConfig) -> int:
    """Tokens of the smallest cache that nothing more is conceded for."""
    most, context = options.max_sequences, options.limits.context_length
    return min(max(min(LONG, context), EACH * most), most * context)
