"""Open a model for a command, with a progress bar."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.text.llm import LLM


def open_llm(settings: Mapping[str, Any], max_sequences: int = 1) -> "LLM":
    """Open the model and engine. settings: those given. max_sequences: the number that the command runs at once, so
    that the engine allocates no more."""
    from gradus.cli.progress import Bars
    from gradus.text.llm import LLM

    with Bars() as progress:
        return LLM(**settings, max_sequences=max_sequences, progress=progress)
