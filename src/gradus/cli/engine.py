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
    """max_sequences: how many the command will run at once; a cache for more would be wasted memory.

    Also keeps the garbage collector from pausing the engine: the process is ours.
    """
    from gradus.cli.progress import Bars
    from gradus.garbage import spare_what_stays
    from gradus.text.llm import LLM

    with Bars() as progress:
        llm = LLM(
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
    spare_what_stays()
    return llm
