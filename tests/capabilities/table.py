"""Every capability, how a test switches it on, and the pairs that are refused. All other pairs give exact answers.

A capability is a setting of the engine or a field of a request. One that the code gains and these tables lack fails
`test_every_setting_and_every_field_has_a_case`.
"""

import atexit
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.engine.structured import Lazy, Structured
from tests.engine import every_field
from tests.phases.conftest import NEWER

Pair = frozenset[str]

PLAIN: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_sequences": 8, "context_length": 64, "memory_fraction": None,
}  # fmt: skip
"""The settings of all engines here."""

# -- settings of an engine: one that changes the answer itself, and those that must not --------------------------------

PREFIX_DIR = Path(tempfile.gettempdir()) / f"gradus-prefixes-{os.getpid()}"
atexit.register(shutil.rmtree, PREFIX_DIR, ignore_errors=True)

CHANGING: dict[str, dict[str, Any]] = {
    "windows": {"model": "random:tiny-gemma3"},
    "kv_dtype": {"kv_dtype": "fp8"},
    "quantize": {"quantize": "int4-g32"},  # int8 rounds activations too, so sums in another order may change a token
}
"""Another model, or other numbers: the reference has them too."""

EXPERTS = ("tiny-qwen2-moe", "tiny-gpt-oss", "tiny-gemma4-moe", "tiny-glm4-moe", "tiny-granite-moe", "tiny-mixtral")
FAMILIES = {shape: {"model": f"random:{shape}"} for shape in (*NEWER, *EXPERTS)}
"""Models with other layers than those of tiny-llama, each with many settings at once."""

SAME: dict[str, dict[str, Any]] = {
    "tensor_parallel": {"tensor_parallel": 2},
    "pipeline_parallel": {"pipeline_parallel": 2},
    "speculate": {"speculate": "ngram", "drafts": 3},
    "speculate, a draft model": {"speculate": "draft:random:tiny-llama", "drafts": 3},
    "token_budget": {"token_budget": 8},
    "step_target": {"step_target": 60.0},  # prompts pass; shorter, its chunks would depend on the machine's load
    "slowdown": {"step_target": 60.0, "slowdown": 1.1},
    "cache_tokens": {"cache_tokens": 96},  # sequences are preempted
    "page_size": {"page_size": 4},
    "policy": {"policy": "priority"},
    "threads": {"threads": 1},
    "prefix_dir": {"prefix_dir": str(PREFIX_DIR)},
}
"""The answers are those without."""

SWITCHES = ("prefix_cache", "chunked", "kernels", "overlap")  # graphs are a GPU's
NOT_ASKED = {
    "model", "device", "dtype", "context_length", "max_sequences",  # every engine here has them
    "phase", "impl",  # a pair with each capability: test_phases.py
    "memory_fraction",  # decides the cache's size, as cache_tokens does
    "drafts", "draft_quantize",  # of speculate
    "prefix_dir_size",  # of prefix_dir
    "host_cache",  # behind a GPU's memory: tests/assembly/test_host_tier.py, tests/gpu/test_host_tier.py
    "activations",  # of int4 and .gguf files alone, in tests/kernels/cpu
    "runner",  # with all that goes with one: tests/execution/remote/test_conformance.py
    "switch_off",  # SWITCHES
}  # fmt: skip

WITH_RANKS = "{} does not work with tensor_parallel or pipeline_parallel yet: leave one of them out"
IN_STAGES = "speculate does not work with pipeline_parallel yet: leave one of them out"
DRAFTS_OF_THEIR_OWN = (
    "draft models and heads do not work with tensor_parallel yet: set speculate to ngram, or leave one of them out"
)
SWITCHED_OFF = "{} does nothing with {} switched off: leave one of them out"

REFUSED_SETTINGS: dict[Pair, str] = (
    {
        frozenset({one, ranks}): WITH_RANKS.format(one)
        for ranks in ("tensor_parallel", "pipeline_parallel")
        for one in ("prefix_dir", "quantize")
    }
    | {
        frozenset({"speculate", "pipeline_parallel"}): IN_STAGES,
        frozenset({"speculate, a draft model", "pipeline_parallel"}): IN_STAGES,
        frozenset({"speculate, a draft model", "tensor_parallel"}): DRAFTS_OF_THEIR_OWN,
    }
    | {
        frozenset({one, switch}): SWITCHED_OFF.format(one, switch)
        for one, switch in (
            ("token_budget", "chunked"),
            ("step_target", "chunked"),
            ("slowdown", "chunked"),
            ("prefix_dir", "prefix_cache"),
        )
    }
)
"""Pairs of settings that raise a ConfigError, and its line."""

ALTERNATIVES: set[Pair] = {frozenset({"speculate", "speculate, a draft model"})}
"""Values of one setting."""


def settings_of(*names: str, device: str = "cpu") -> dict[str, Any]:
    """Merge the settings of these capabilities."""
    merged: dict[str, Any] = {"model": "random:tiny-llama"}
    for name in names:
        if name in SWITCHES:
            merged["switch_off"] = (*merged.get("switch_off", ()), name)
        else:
            merged |= (CHANGING | FAMILIES | SAME)[name]
    return PLAIN | merged | {"device": device}


def pairs_of_settings() -> list[tuple[str, str]]:
    """List all pairs of settings and switches that can be given together."""
    every = combinations([*CHANGING, *SAME, *SWITCHES], 2)
    return [pair for pair in every if frozenset(pair) not in ALTERNATIVES]


# -- fields of a request -----------------------------------------------------------------------------------------------

FIELDS: dict[str, Any] = {name: values[-1] for name, values in every_field.SAMPLING.items()} | {
    "structured": {"regex": "[a-f]{2,9}(, [0-9]{1,4})*"},
    "stop": ["a", "e", "7"],
    "max_tokens": 9,
    "n": 2,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.7,
    "min_tokens": 4,
    "stop_token_ids": [60, 61, 62, 63],
    "prompt_logprobs": 2,
    "logprobs": 2,
    "logit_bias": {9: -2.5, 97: 3.0},
}
SCHEDULING: dict[str, Any] = {"priority": -2, "deadline": 500.0, "timeout": 300.0, "cache_salt": "ß"}

REFUSED_FIELDS: dict[Pair, str] = {
    frozenset({"structured", "ignore_eos"}): "ignore_eos must be false with `structured`, whose answers end where "
    "their grammar does, got True",
    frozenset({"structured", "min_tokens"}): "min_tokens must be 0 with `structured`, whose answers end where their "
    "grammar does, got 4",
}
"""Pairs of fields that raise a RequestError, and its line."""

LAZY = Structured(
    grammar='start: (head /[a-f]{2}/ "!")* /(?s:.*)/\nhead[lazy]: /(?s:.*)[0-9A-Za-z ]/', lazy=Lazy(whole=True)
)
"""Text with sentences of a grammar in it, which many characters begin. Such answers may end where others do."""

DRAWN = {"temperature", "top_k", "top_p", "min_p", "n", "seed"}
"""Fields that say nothing of greedy answers."""

MOST_FIELDS = 5
"""A request has no more. Most fields alone change nothing in an answer; more at once would hide one another."""

Asked = tuple[list[int], SamplingParams, SchedulingParams]


def pairs_of_fields() -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Yield all pairs of fields with their values. A field that needs sampling comes with it."""
    for pair in combinations([*FIELDS, *SCHEDULING], 2):
        yield pair, {name: {**FIELDS, **SCHEDULING}[name] for name in pair}


def made(values: Mapping[str, Any]) -> tuple[SamplingParams, SchedulingParams]:
    """Make the parameters. Raises RequestError for a pair that is refused."""
    sampling = {name: value for name, value in values.items() if name in FIELDS}
    drawn = {"temperature": 0.8, "seed": 5} if set(sampling) & DRAWN else {}
    scheduling = {name: value for name, value in values.items() if name in SCHEDULING}
    return SamplingParams(**{"max_tokens": 12, **drawn, **sampling}), SchedulingParams(**scheduling)


def one_pair() -> Iterator[dict[str, Any]]:
    """Yield the values of every pair of fields that is not refused, and of LAZY with every other field."""
    every = list(pairs_of_fields())
    yield from (dict(values) for pair, values in every if frozenset(pair) not in REFUSED_FIELDS)
    yield from ({**values, "structured": LAZY} for pair, values in every if "structured" in pair)


def many_fields() -> Iterator[dict[str, Any]]:
    """Yield values of several fields each, every pair of `one_pair` among them: a greedy pair in a greedy request, and
    one without a grammar in one without."""
    kinds: dict[tuple[bool, ...], list[dict[str, Any]]] = {}
    for pair in one_pair():
        kind = "structured" in pair, pair.get("structured") is LAZY, not DRAWN.isdisjoint(pair)
        kinds.setdefault(kind, []).append(pair)
    for pairs in kinds.values():
        values = {name: value for pair in pairs for name, value in pair.items()}
        for names in _covering([frozenset(pair) for pair in pairs]):
            yield {name: value for name, value in values.items() if name in names}


def _covering(missing: list[Pair]) -> Iterator[set[str]]:
    """Yield sets of names until each pair is in one. A name joins those with which it makes the most missing pairs."""
    while missing:
        chosen = set(missing[0])
        while len(chosen) < MOST_FIELDS:
            made_with = Counter(name for pair in missing if len(pair & chosen) == 1 for name in pair - chosen)
            if not made_with:
                break
            chosen.add(made_with.most_common(1)[0][0])
        yield chosen
        missing = [pair for pair in missing if not pair <= chosen]


@cache
def asked() -> list[Asked]:
    """Return the requests of `many_fields`, then those of `one_pair`. Prompts repeat, and share their beginnings."""
    return [*_requests(many_fields()), *_requests(one_pair())]


def _requests(every: Iterator[dict[str, Any]]) -> Iterator[Asked]:
    for number, values in enumerate(every):
        yield [*range(65, 65 + number % 19), *[97, 98, 99] * 3, number % 320], *made(values)


MANY = range(len([*many_fields()]))
"""The numbers of the requests with several fields each."""

EVERY = range(len(MANY), len(MANY) + len([*one_pair()]))
"""The numbers of the requests with a pair each."""

SOME = MANY[2::4]
"""Each field is in one of them, and in one without a grammar."""
