"""A phase's kernels on a machine without a GPU: Triton interprets them, on a tiny model, and what ran is counted.

here = interpreted.wanted(settings)         # None unless the phase has kernels to write, and nothing to run them
with here.counting():
    …                                       # a run with here.settings
for line in here.report(completions, text, params): …
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradus import phases
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.text.completion import Completion

MODEL, TOKENS = "random:tiny-llama", 24
REFERENCE = "p06"
"""The phase with the same plans, in plain torch: an interpreted phase must give its tokens."""


@dataclass(slots=True)
class Interpreted:
    """A run of `phase` in Triton's interpreter. settings: for `LLM`. seen: the kernels that ran, once counted."""

    phase: phases.PhaseInfo
    settings: dict[str, Any]
    seen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """Say in a line what runs, and why."""
        chosen = self.settings["model"]
        other = "" if chosen != MODEL else " (--model takes another)"
        return f"{self.phase.name}: no GPU, so Triton interprets kernels, slowly; model {chosen}{other}"

    def shortened(self, params: SamplingParams) -> SamplingParams:
        """The same, with an end that is soon enough where none was given."""
        return params if params.max_tokens is not None else replace(params, max_tokens=TOKENS)

    @contextmanager
    def counting(self) -> Iterator[None]:
        with self.phase.module("watch").watched() as self.seen:
            yield

    def kernels(self) -> list[str]:
        """A line for each kernel: its file, and how often it ran."""
        lines = []
        for kernel in self.seen.values():
            file = kernel.file if not kernel.file.is_relative_to(Path.cwd()) else kernel.file.relative_to(Path.cwd())
            lines.append(f"{kernel.name} ({file}): {kernel.launches:,} launches, {kernel.programs:,} programs")
        return lines

    def parting(self, text: str, params: SamplingParams, completions: Sequence[Completion]) -> str | None:
        """Run the reference, and say where the tokens part from its; None if they are the same."""
        from gradus.text.llm import LLM

        settings = {name: value for name, value in self.settings.items() if name != "impl"}
        with LLM(**settings | {"phase": REFERENCE, "max_sequences": params.n}) as llm:
            right = llm.generate(text, params)
        for ours, theirs in zip(right, completions, strict=True):
            if theirs.error or ours.token_ids != theirs.token_ids:
                return _first_parting(ours.token_ids, theirs.token_ids)
        return None


def wanted(settings: Mapping[str, Any]) -> Interpreted | None:
    """Ask Triton to interpret, if these settings choose a phase with kernels to write and a device without a GPU.

    Must come before Triton is imported. Raises ConfigError as `Settings` does.
    """
    from gradus.config.settings import Settings
    from gradus.exercises.declaration import has_kernels
    from gradus.models.precision import resolve_device

    given = Settings.of(settings)
    info = phases.find(given.phase) if given.phase is not None else None
    if info is None or not has_kernels(info):
        return None
    if resolve_device(given.device).type != "cpu" or find_spec("triton") is None:
        return None
    ask()
    usual = {"model": MODEL, "dtype": "float32"}
    return Interpreted(info, usual | {name: value for name, value in settings.items() if value is not None})


def ask() -> None:
    """Make Triton interpret. Raises ConfigError where it is not installed, or imported already to compile."""
    from gradus.kernels import INTERPRET

    if find_spec("triton") is None:
        raise ConfigError(
            "the kernels need Triton, also without a GPU: run pip install triton (there is one for Linux)"
        )
    if "triton" in sys.modules and os.environ.get(INTERPRET) != "1":
        raise ConfigError(f"Triton is imported already, and not to interpret: set {INTERPRET}=1 before Python starts")
    os.environ[INTERPRET] = "1"


def _first_parting(right: Sequence[int], found: Sequence[int]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(right, found, strict=False)) if a != b), min(len(right), len(found)))
    ours, theirs = (str(tokens[place]) if place < len(tokens) else "the end" for tokens in (right, found))
    return f"token {place + 1} is {theirs}, and {REFERENCE} gives {ours}"
