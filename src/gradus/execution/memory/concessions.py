"""Lowers defaults on a small or shared GPU until they leave a cache worth having.

The defaults suit a GPU with memory to spare: steps of 8,192 tokens, 256 sequences, a graph for every batch size. The
more memory these take, the less is left for the cache. If too little is left, the defaults are lowered by the steps of
a ladder, the cheapest first. A cache is worth having once it holds a request of `LONG` tokens (or of the whole context,
if that is shorter) and `EACH` tokens for every sequence that may run.

A setting that the user gave is never lowered: the options' `yielding` names the settings left at their defaults.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gradus.config.options import EngineConfig
from gradus.execution.memory.device_memory import DeviceMemory

LONG, EACH = 2048, 256

LADDER: tuple[tuple[str, Any], ...] = (
    # A step of 2,048 tokens keeps a GPU nearly as busy as one of 8,192, and computes with a quarter of the memory.
    ("token_budget", 4096),
    ("token_budget", 2048),
    # Logits, penalties and graphs take memory per sequence. With fewer of them a crowd waits longer.
    ("max_sequences", 128),
    ("max_sequences", 64),
    # Below 2,048 tokens prompts are read more slowly. Passes above the budget then need no graphs.
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
    """A setting left at its default, and the lower value that replaced it."""

    setting: str
    default: Any
    became: Any

    def __str__(self) -> str:
        if isinstance(self.became, bool):
            return f"no {self.setting}"
        return f"{self.setting} {self.became:g} instead of {self.default:g}"


def descending(options: EngineConfig, memory: DeviceMemory) -> Iterator[EngineConfig]:
    """Yield the options as they are, then with one more concession each time."""
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
    """Return the memory_fraction that leaves a tenth of the free memory unused; the default leaves a tenth of all.

    If others hold nine tenths of a GPU, the default would leave nothing. None if it gains less than `SHARED`.
    """
    fraction = options.memory_fraction
    if fraction is None or memory.total is None or "memory_fraction" not in options.yielding:
        return None
    shared = 1 - (1 - fraction) * memory.free / memory.total
    return int(shared * 10_000) / 10_000 if shared >= fraction + SHARED else None


def conceded(before: EngineConfig, after: EngineConfig) -> tuple[Concession, ...]:
    """List the settings that differ between the given options and the planned ones."""
    names = dict.fromkeys(("memory_fraction", *(name for name, _ in LADDER)))
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return tuple(Concession(name, default, became) for name, default, became in pairs if default != became)


def worth_having(options: EngineConfig) -> int:
    """Count the tokens that a cache must hold to end the concessions."""
    most, context = options.max_sequences, options.limits.context_length
    return min(max(min(LONG, context), EACH * most), most * context)
