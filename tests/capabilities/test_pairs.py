"""Any two capabilities together: the answers are those of either alone, or one line refuses them."""

from dataclasses import fields
from pathlib import Path

import pytest

from gradus import LLM
from gradus.config.description import described
from gradus.config.options import SWITCHES as ALL_SWITCHES
from gradus.config.settings import Settings
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.errors import ConfigError, RequestError
from tests.capabilities.answers import answers, differing, reference
from tests.capabilities.table import (
    CHANGING,
    DRAWN,
    EVERY,
    FAMILIES,
    FIELDS,
    LAZY,
    MANY,
    NOT_ASKED,
    REFUSED_FIELDS,
    REFUSED_SETTINGS,
    SAME,
    SCHEDULING,
    SOME,
    SWITCHES,
    asked,
    made,
    many_fields,
    one_pair,
    pairs_of_fields,
    pairs_of_settings,
    settings_of,
)

COMMON = ("windows", "kv_dtype", "cache_tokens", "page_size", "policy", "threads")
OFF = tuple(name for name in SWITCHES if name != "chunked")
KEPT = tuple(name for name in SWITCHES if name != "prefix_cache")

# Each engine has many capabilities at once, and each request many fields, so that every pair that is not refused is in
# one of them: `make test` runs these, and `make stress` each pair by itself, which says where to look.
TOGETHER = [
    ("tensor_parallel", *COMMON, "token_budget", "step_target", "slowdown", "speculate"),
    ("pipeline_parallel", *COMMON, "token_budget", "step_target", "slowdown"),
    ("tensor_parallel", "pipeline_parallel", *COMMON, *SWITCHES),
    ("speculate", *COMMON, "quantize", "token_budget", "step_target", "slowdown", "prefix_dir"),
    ("speculate, a draft model", *COMMON, "token_budget", "step_target", "slowdown", "prefix_dir"),
    ("speculate", *COMMON, "quantize", "prefix_dir", *KEPT),
    ("speculate, a draft model", *COMMON, "quantize", *SWITCHES),
    ("speculate", *COMMON, "token_budget", "step_target", "slowdown", *OFF),
]
ROOT = Path(__file__).parents[2]
# A step of several processes takes long where other tests run, and int4 is widened for each product.
SLOW = {"tensor_parallel", "pipeline_parallel", "quantize"}


@pytest.fixture(autouse=True)
def short_prompts_are_kept_on_disk(monkeypatch):
    monkeypatch.setattr("gradus.cache.disk.tier.WORTH_TOKENS", 1)


def test_every_setting_and_every_field_has_a_case():
    assert {*CHANGING, *SAME, *NOT_ASKED} - {"windows", "speculate, a draft model"} == {
        name for name in described(Settings) if name not in ALL_SWITCHES
    }
    assert {*SWITCHES, "graphs"} == set(ALL_SWITCHES)
    assert set(FIELDS) == {each.name for each in fields(SamplingParams)}
    assert set(SCHEDULING) == {each.name for each in fields(SchedulingParams)}


@pytest.mark.parametrize("pair", sorted(map(sorted, REFUSED_SETTINGS)), ids=" × ".join)
def test_two_settings_that_do_not_go_together_are_refused_in_one_line(pair):
    with pytest.raises(ConfigError) as refused:
        LLM(**settings_of(*pair))
    assert str(refused.value) == REFUSED_SETTINGS[frozenset(pair)]


def test_two_fields_go_together_or_are_refused_in_one_line():
    lines = {}
    for pair, values in pairs_of_fields():
        try:
            made(values)
        except RequestError as refused:
            lines[frozenset(pair)] = str(refused)
    assert lines == REFUSED_FIELDS


def test_every_pair_of_settings_is_in_one_of_the_engines():
    missing = [pair for pair in pairs_of_settings() if not any(set(engine) >= set(pair) for engine in TOGETHER)]
    assert {frozenset(pair) for pair in missing} == set(REFUSED_SETTINGS)


def agree(settings: tuple[str, ...], requests: range) -> None:
    """Assert that an engine with these settings gives the answers of the reference, and so does one that finds some of
    their prompts on disk."""
    changing = [name for name in (*CHANGING, *FAMILIES) if name in settings]
    runs = [(SOME, False), (requests, True)] if "prefix_dir" in settings else [(requests, False)]
    for numbers, restarted in runs:
        with LLM(**settings_of(*settings)) as llm:
            found = answers(llm, [asked()[number] for number in numbers])
            differences = differing(found, reference(*changing, numbers=numbers))
            assert not restarted or llm.core.metrics().cache.disk.hit_positions, "nothing was read from disk"
        assert differences == [], f"{' + '.join(settings)}: {differences[0]}"


@pytest.mark.parametrize("settings", TOGETHER, ids=" + ".join)
def test_all_pairs_of_fields_are_exact_with_many_settings_together(settings):
    agree(settings, SOME if SLOW & set(settings) else MANY)


@pytest.mark.stress
@pytest.mark.parametrize("settings", TOGETHER, ids=" + ".join)
def test_each_pair_of_fields_is_exact_with_many_settings_together(settings):
    agree(settings, EVERY[6::7] if SLOW & set(settings) else EVERY)


EVERYTHING = ("kv_dtype", "cache_tokens", "page_size", "policy", "token_budget", "speculate", "prefix_dir")
USUAL = ("tiny-ministral3", "tiny-olmo3", "tiny-gemma4-e", "tiny-gpt-oss")  # `make stress` has the others


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=() if shape in USUAL else pytest.mark.stress) for shape in FAMILIES]
)
def test_every_family_is_exact_with_many_settings_together(shape):
    agree((shape, *EVERYTHING), SOME)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("tiny-qwen2-moe", ("tensor_parallel", "kv_dtype", "cache_tokens", "page_size", "token_budget", "speculate")),
        pytest.param("tiny-glm4-moe", ("pipeline_parallel", "kv_dtype", "cache_tokens"), marks=pytest.mark.stress),
        pytest.param("tiny-gpt-oss", ("tensor_parallel", "cache_tokens", "speculate"), marks=pytest.mark.stress),
        *(
            pytest.param(shape, ("quantize", *EVERYTHING), marks=pytest.mark.stress)
            for shape in ("tiny-gpt-oss", "tiny-qwen2-moe")
        ),
    ],
)
def test_experts_are_exact_on_ranks_and_in_fewer_bits(shape, settings):
    agree((shape, *settings), SOME)


def test_every_pair_of_fields_is_in_a_request_with_many():
    """A greedy pair is in a greedy request, and one without a grammar in one without."""
    every = [*many_fields()]
    for pair in one_pair():
        alike = [values for values in every if DRAWN.isdisjoint(values) == DRAWN.isdisjoint(pair)]
        assert any(
            values.items() >= pair.items() for values in alike if values.get("structured") == pair.get("structured")
        )


def test_some_of_the_requests_have_every_field():
    some = [*many_fields()][SOME.start :: SOME.step]
    grammars = [values["structured"] for values in some if "structured" in values]
    assert LAZY in grammars and FIELDS["structured"] in grammars
    free = {name for values in some if "structured" not in values for name in values}
    assert free | {"structured"} == {*FIELDS, *SCHEDULING}


@pytest.mark.stress
@pytest.mark.parametrize("pair", pairs_of_settings(), ids=" × ".join)
def test_any_two_settings_are_exact(pair):
    if frozenset(pair) not in REFUSED_SETTINGS:
        agree(pair, EVERY)


def test_the_documentation_lists_the_pairs_that_are_refused():
    section = (ROOT / "docs/serving.md").read_text().split("## What works together")[1].split("\n## ")[0]
    listed = {row.split(" | ")[1].removesuffix(" |") for row in section.splitlines() if row.startswith("| `")}
    assert listed == {*REFUSED_SETTINGS.values(), *REFUSED_FIELDS.values()}


def test_the_comparison_notices_one_wrong_token():
    wanted = reference(numbers=SOME)
    (answer,) = wanted[5]
    wrong = [*wanted[:5], [answer | {"tokens": (*answer["tokens"][:-1], 0)}], *wanted[6:]]
    assert len(differing(wrong, wanted)) == 1
