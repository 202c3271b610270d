"""A model opened for a command, with its progress shown on stderr."""

from typing import TYPE_CHECKING

from gradus.cli import terminal

if TYPE_CHECKING:
    from gradus.engine.llm import LLM


def open_llm(model: str, phase: str | None, *, device: str, dtype: str, context_length: int | None) -> "LLM":
    from gradus.engine.llm import LLM

    with terminal.progress() as progress:
        return LLM(model, phase=phase, device=device, dtype=dtype, context_length=context_length, progress=progress)
