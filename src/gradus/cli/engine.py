"""A model opened for a command, its progress shown."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.text.llm import LLM


def open_llm(settings: Mapping[str, Any], max_sequences: int = 1) -> "LLM":
    """settings: those that were given. max_sequences: what the command runs at once, so that it allocates no more."""
    from gradus.cli.progress import Bars
    from gradus.text.llm import LLM

    with Bars() as progress:
        return LLM(**settings, max_sequences=max_sequences, progress=progress)
