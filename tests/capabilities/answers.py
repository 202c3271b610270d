"""Asks an engine for the answers of the table's requests, in a form that can be compared."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from gradus import LLM
from gradus.engine.logprobs import TokenLogprob
from gradus.text.completion import Completion
from tests.capabilities.table import CHANGING, EVERY, FAMILIES, SWITCHES, Asked, asked, settings_of

Answer = dict[str, Any]
Scores = tuple[TokenLogprob, ...] | None

NEAR = 3e-3
"""Log-probabilities may differ by this: sums differ in their order, and then fp8 rounds a key up instead of down."""


def answers(llm: LLM, requests: list[Asked]) -> list[list[Answer]]:
    """Run all requests together, and check the engine's books afterwards. Returns each request's samples."""
    prompts, sampling, scheduling = map(list, zip(*requests, strict=True))
    done = llm.generate(prompts, sampling, scheduling=scheduling)
    llm.check()
    return [[written(each) for each in samples] for _, samples in groupby(done, lambda each: each.prompt_index)]


def written(done: Completion) -> Answer:
    """Return everything that a client sees of an answer, without its times."""
    return {
        "tokens": done.token_ids,
        "text": done.text,
        "finish_reason": done.finish_reason,
        "stop_reason": done.stop_reason,
        "error": done.error,
        "logprobs": done.logprobs,
        "prompt_logprobs": done.prompt_logprobs,
    }


@cache
def reference(*changing: str, numbers: Sequence[int] = EVERY, device: str = "cpu") -> list[list[Answer]]:
    """Return the answers with every optimization switched off, to one request after the other.

    numbers: of the table's requests, a range or a tuple.
    """
    assert set(changing) <= {*CHANGING, *FAMILIES}
    off = SWITCHES if device == "cpu" else (*SWITCHES, "graphs")
    settings = settings_of(*changing, device=device) | {"switch_off": off, "max_sequences": 1}
    with LLM(**settings) as llm:
        return [answers(llm, [asked()[number]])[0] for number in numbers]


def differing(found: list[list[Answer]], wanted: list[list[Answer]]) -> list[str]:
    """Describe the requests whose answers differ: the field, what was found, and what was wanted."""
    numbered = enumerate(zip(found, wanted, strict=True))
    return [f"request {number}: {line}" for number, pair in numbered for line in _differing(*pair)]


def _differing(found: list[Answer], wanted: list[Answer]) -> Iterator[str]:
    for sample, (one, other) in enumerate(zip(found, wanted, strict=True)):
        for field, value in one.items():
            if not (_near(value, other[field]) if field.endswith("logprobs") else value == other[field]):
                yield f"sample {sample}, {field}: {value} instead of {other[field]}"


def _near(found: Scores, wanted: Scores) -> bool:
    """Whether the same tokens, and likeliest ones, have nearly the same log-probabilities."""
    if not found or not wanted:
        return found == wanted
    pairs = list(zip(found, wanted, strict=True))
    same = all(one.token_id == other.token_id and len(one.top) == len(other.top) for one, other in pairs)
    return same and all(abs(one.logprob - other.logprob) < NEAR for one, other in pairs)
