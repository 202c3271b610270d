"""What a phase's `build` is told beside the model. No torch here."""

from dataclasses import dataclass
from typing import Literal, get_args

from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

DEFAULT_MAX_SEQUENCES = 8
DEFAULT_PAGE_SIZE = 16

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


def resolve_context(asked: int | None, most: int) -> int:
    """Tokens of prompt and output together: as asked, or the `most` that the model was made for."""
    length = most if asked is None else asked
    if not 2 <= length <= most:
        raise ConfigError(f"context_length must be between 2 and {most}, got {length}")
    return length


def _whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number, {least} or more, got {value!r}")
