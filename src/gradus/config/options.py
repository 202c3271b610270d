"""What an engine is built with beside the model: a phase's options, and the final engine's. No torch here."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

DEFAULT_MAX_SEQUENCES = 8
DEFAULT_PAGE_SIZE = 16

FINAL = "final"  # what the final engine is called where a phase would be named

# Defaults of the final engine, by device. What a step costs hardly grows up to some number of tokens, for it must read
# all weights anyway; then it grows with each. A budget beyond that point delays the decodes, one below it wastes the
# step. On a CPU others need memory too, and only what is free now is known.
BUDGETS = {"cpu": 256, "cuda": 8192}
MAX_SEQUENCES = {"cpu": DEFAULT_MAX_SEQUENCES, "cuda": 256}
MEMORY_FRACTIONS = {"cpu": 0.5, "cuda": 0.9}

SWITCHES = ("prefix_cache", "chunked", "kernels", "graphs", "overlap")

Policy = Literal["fcfs", "priority", "deadline"]
POLICIES: tuple[str, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """limits: what requests must respect; `limits.context_length` is also the longest sequence the cache must hold.

    max_sequences: most sequences that run at once, in the phases that batch (p02 and later).

    The rest is for the phases whose cache is paged (p04 and later):
    page_size: positions a page. cache_tokens: positions that the whole cache has room for; None is max_sequences of the
    longest. policy: who goes first, "fcfs" (as they came), "priority" or "deadline".
    token_budget: most tokens a step, in the phases that cut prompts into chunks (p06 and later); None is what suits the
    device.

    Raises ConfigError for a number that cannot be.
    """

    limits: ModelLimits
    max_sequences: int = DEFAULT_MAX_SEQUENCES
    page_size: int = DEFAULT_PAGE_SIZE
    cache_tokens: int | None = None
    policy: Policy = "fcfs"
    token_budget: int | None = None

    def __post_init__(self) -> None:
        _whole("max_sequences", self.max_sequences, 1)
        _whole("page_size", self.page_size, 1)
        if self.cache_tokens is not None:
            _whole("cache_tokens", self.cache_tokens, self.page_size)
        if self.token_budget is not None:
            _whole("token_budget", self.token_budget, 1)
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")

    @property
    def cache_positions(self) -> int:
        """Positions that a paged cache gets room for."""
        return self.cache_tokens or self.max_sequences * self.limits.context_length

    @property
    def cache_blocks(self) -> int:
        """Pages that those positions fill, in each layer group: in all, as many bytes as a contiguous cache of them."""
        return -(-self.cache_positions // self.page_size)


@dataclass(frozen=True, slots=True)
class EngineConfig(EngineOptions):
    """EngineOptions of the final engine, a switch for each optimization, and how its cache is sized.

    prefix_cache: requests that begin alike share pages. chunked: prompts are cut to the token budget.
    kernels: Triton kernels for attention, the model's other parts and sampling, on a CUDA GPU.
    graphs: steps of decodes are replayed from CUDA graphs; needs `kernels`. overlap: the next step is scheduled while
    the GPU works on this one.

    memory_fraction: the cache gets what is left of this part of the device's memory (on a CPU: of what is free) beside
    weights, the largest step and graphs, at most `max_sequences` of the longest. What others hold there counts as
    taken. None asks nobody: `max_sequences` of the longest. `cache_tokens` wins over both.
    """

    prefix_cache: bool = True
    chunked: bool = True
    kernels: bool = True
    graphs: bool = True
    overlap: bool = True
    memory_fraction: float | None = None

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)
        if self.graphs and not self.kernels:
            raise ConfigError("graphs need kernels: switch both on, or graphs off")
        if self.memory_fraction is not None:
            check_fraction(self.memory_fraction)

    @classmethod
    def of(cls, options: EngineOptions, **switches: bool) -> "EngineConfig":
        """The same options with switches."""
        values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(EngineOptions)}
        return cls(**{**values, **switches})

    def budget(self, device: str) -> int | None:
        """Most tokens a step on this kind of device ("cpu", "cuda"); None where prompts are not cut."""
        return (self.token_budget or BUDGETS[device]) if self.chunked else None

    @property
    def sized(self) -> bool:
        """Whether the cache is what memory has room for."""
        return self.cache_tokens is None and self.memory_fraction is not None


def check_fraction(value: float) -> None:
    """Of memory_fraction, wherever it comes from."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"memory_fraction must be a number above 0 and at most 1, got {value!r}")


def check_switches(names: Iterable[str]) -> None:
    """Of switch_off, wherever it comes from."""
    for name in names:
        if name not in SWITCHES:
            raise ConfigError(f"switch_off takes {', '.join(SWITCHES)}, got {name!r}")


def resolve_context(asked: int | None, most: int) -> int:
    """Tokens of prompt and output together: as asked, or the `most` that the model was made for."""
    length = most if asked is None else asked
    if not 2 <= length <= most:
        raise ConfigError(f"context_length must be between 2 and {most}, got {length}")
    return length


def _whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number, {least} or more, got {value!r}")
