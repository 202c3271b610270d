"""A model opened for a command, its progress shown."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.text.llm import LLM


def open_llm(
    model: str,
    phase: str | None,
    *,
    device: str,
    dtype: str,
    context_length: int | None,
    memory_fraction: float | None,
    switch_off: list[str] | None,
    max_sequences: int = 1,
) -> "LLM":
    """max_sequences: what the command will run at once; a cache for more would be memory for nothing."""
    from gradus.cli.progress import Bars
    from gradus.text.llm import LLM

    with Bars() as progress:
        return LLM(
            model,
            phase=phase,
            device=device,
            dtype=dtype,
            context_length=context_length,
            memory_fraction=memory_fraction,
            switch_off=switch_off or (),
            max_sequences=max_sequences,
            progress=progress,
        )
