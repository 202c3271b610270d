"""Requests in which each field has a value of its own, so that whatever copies a request is seen to copy all of it.

A field that a request gains and this table lacks fails `test_every_field_has_a_case`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gradus.engine.request import MAX_SEED, ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.structured import Lazy, Structured

LIMITS = ModelLimits(512, 4096, (2,), structured=True, lazy=True, prompt_logprobs=True)

SCHEMA = {"type": "object", "properties": {"ß": {"type": "integer"}}, "required": ["ß"]}

STRUCTURED: dict[str, list[Structured]] = {
    "json_schema": [Structured(json_schema=SCHEMA), Structured(json_schema="true"), Structured(json_schema=False)],
    "json": [Structured(json=True)],
    "regex": [Structured(regex="a\\d{2}ß?")],
    "grammar": [Structured(grammar='start: "a"')],
    "choice": [Structured(choice=("a", "b\n", "\x7f"))],
    "whitespace": [Structured(json=True, whitespace="compact")],
    "lazy": [
        Structured(grammar='start: "a"', lazy=Lazy(("<ß>",), "a+", False, ("<b>", "</b>"), True)),
        Structured(grammar='start: "a"?', lazy=Lazy(whole=True)),
    ],
}

SAMPLING: dict[str, list[Any]] = {
    "max_tokens": [1, 17],
    "temperature": [0.7],
    "top_k": [-1, 3],
    "top_p": [0.5],
    "min_p": [0.25],
    "repetition_penalty": [1.5],
    "presence_penalty": [-0.5],
    "frequency_penalty": [0.5],
    "logit_bias": [{5: -2.5, 7: 100.0}],
    "seed": [0, MAX_SEED],
    "n": [3],
    "stop": [["end", "ß"]],
    "stop_token_ids": [[9, 2]],
    "min_tokens": [1],
    "ignore_eos": [True],
    "logprobs": [0, 20],
    "prompt_logprobs": [0, 3],
    "structured": [value for values in STRUCTURED.values() for value in values],
}

SCHEDULING: dict[str, list[Any]] = {
    "priority": [-3, 4],
    "deadline": [2.5],
    "timeout": [0.25],
    "cache_salt": ["ß"],
}


def requests() -> Iterator[tuple[str, Request]]:
    """Yield requests with one unusual field each, with that field's name; then one with all that go together."""
    for name, values in SAMPLING.items():
        for value in values:
            yield name, request(SamplingParams(**{name: value}))
    for name, values in SCHEDULING.items():
        for value in values:
            yield name, request(scheduling=SchedulingParams(**{name: value}))
    alone = {"structured", "ignore_eos", "min_tokens"}
    rest = {name: values[-1] for name, values in SAMPLING.items() if name not in alone}
    scheduling = SchedulingParams(**{name: values[-1] for name, values in SCHEDULING.items()})
    free = SamplingParams(**rest, ignore_eos=True, min_tokens=3)
    yield "all", request(free, scheduling)
    yield (
        "all, structured",
        request(replace(free, ignore_eos=False, min_tokens=0, structured={"json": True}), scheduling),
    )


def request(params: SamplingParams | None = None, scheduling: SchedulingParams | None = None) -> Request:
    """Make a request of a short prompt."""
    return Request.create("r-ß", [1, 511, 3], params or SamplingParams(), LIMITS, scheduling)
