"""A model opened for a command, its progress shown."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.engine.llm import LLM


def open_llm(model: str, phase: str | None, *, device: str, dtype: str, context_length: int | None) -> "LLM":
    from gradus.cli.progress import Bars
    from gradus.engine.llm import LLM

    with Bars() as progress:
        return LLM(model, phase=phase, device=device, dtype=dtype, context_length=context_length, progress=progress)
