"""What a phase's `build` is told beside the model. No torch here."""

from dataclasses import dataclass

from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

DEFAULT_MAX_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """limits: what requests must respect; `limits.context_length` is also the longest sequence the cache must hold.

    max_sequences: most sequences that run at once, in the phases that batch (p02 and later).
    """

    limits: ModelLimits
    max_sequences: int = DEFAULT_MAX_SEQUENCES


def resolve_context(asked: int | None, most: int) -> int:
    """Tokens of prompt and output together: as asked, or the `most` that the model was made for."""
    length = most if asked is None else asked
    if not 2 <= length <= most:
        raise ConfigError(f"context_length must be between 2 and {most}, got {length}")
    return length
