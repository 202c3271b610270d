"""Each phase of the course with each capability: the final engine's answers, or one line says that it does nothing."""

from functools import cache
from typing import Any

import pytest

from gradus import LLM
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError, RequestError
from tests.capabilities.answers import Answer, answers, differing, reference
from tests.capabilities.table import CHANGING, SAME, SOME, asked, settings_of
from tests.phases.conftest import PHASES

SETTINGS = [name for name in (*CHANGING, *SAME) if name != "windows"]
OTHER_NUMBERS = {"p07"}  # quantizes by itself: its reference is itself, one request after the other

REFUSED = {("p07", "quantize"): "p07 rounds weights itself, and this model's are quantized already: leave quantize out"}


def phase_of(phase: str, *names: str, **settings: Any) -> LLM:
    given = settings_of(*names) | settings
    return LLM(**{name: value for name, value in given.items() if name != "memory_fraction"}, phase=phase)


@cache
def reference_of(phase: str, *changing: str, numbers: tuple[int, ...]) -> list[list[Answer]]:
    """Return the right answers to the requests with these numbers."""
    if phase not in OTHER_NUMBERS:
        return reference(*changing, numbers=numbers)
    with phase_of(phase, *changing, max_sequences=1) as llm:
        return [answers(llm, [asked()[number]])[0] for number in numbers]


def every_phase_takes(sampling: SamplingParams) -> bool:
    return sampling.structured is None and sampling.prompt_logprobs is None


def agree(llm: LLM, phase: str, names: tuple[str, ...], numbers: list[int]) -> None:
    found = answers(llm, [asked()[number] for number in numbers])
    changing = [name for name in names if name in CHANGING]
    assert differing(found, reference_of(phase, *changing, numbers=tuple(numbers))) == []


@pytest.mark.parametrize("model", [(), ("windows",)], ids=["alone", "windows"])
@pytest.mark.parametrize("phase", PHASES)
def test_every_field_is_exact_or_refused_in_one_line(phase, model):
    kept = []
    with phase_of(phase, *model) as llm:
        for number in SOME:
            try:
                llm.front_end.request(*asked()[number])
            except RequestError as refused:
                assert str(refused).startswith(("structured must be left out: ", "prompt_logprobs must be left out: "))
                assert "\n" not in str(refused)
            else:
                kept.append(number)
        agree(llm, phase, model, kept)
    assert len(kept) > len(SOME) / 2


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_setting_is_exact_or_refused_in_one_line(phase, name):
    try:
        llm = phase_of(phase, name)
    except ConfigError as refused:
        line = REFUSED.get((phase, name), f" does nothing in phase {phase}, leave it out; it is for ")
        assert line in str(refused) and "\n" not in str(refused)
        return
    with llm:
        agree(llm, phase, (name,), [number for number in SOME if every_phase_takes(asked()[number][1])])
