"""Prefixes in host memory with real engines: what the pool gave up comes back, and the answers are those without it.

A GPU's copies run here on a CPU, where each is done at once; tests/cache/test_host.py has those that are late, and
tests/gpu/test_host_tier.py a GPU's.
"""

import re

import pytest

from gradus import LLM, SamplingParams
from gradus.assembly import prefixes
from gradus.cache.host import tier
from gradus.engine.request import SchedulingParams
from gradus.errors import ConfigError
from tests.pairwise import first

PROMPT = [(7 * number) % 250 + 1 for number in range(300)]
PLAIN = {"model": "random:tiny-llama", "device": "cpu", "dtype": "float32", "max_sequences": 4, "context_length": 400}
SMALL = {"cache_tokens": 416, "host_cache": 0.05, "token_budget": 64}
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=7)


@pytest.fixture
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(prefixes, "check_host_cache", lambda options, device: None)
    monkeypatch.setattr(tier, "GRACE_S", 60.0)


def ask(llm, prompt, salt=None):
    (done,) = llm.generate([prompt], DRAWN, scheduling=SchedulingParams(cache_salt=salt))
    llm.check()
    return done.token_ids, done.cached_tokens


def evict(llm):
    """Fill the pool with other prompts."""
    for number in range(3):
        ask(llm, [200 + number, *PROMPT[::-1]])


SETTINGS = [
    {"model": "random:tiny-gemma3"},
    {"model": "random:tiny-gemma4-e", "kv_dtype": "fp8"},
    {"speculate": "draft:random:tiny-llama", "drafts": 3},
    {"switch_off": ("kernels", "overlap")},
    {"dtype": "bfloat16", "page_size": 8},
    # one difference each, which those before have with others
    {},
    {"kv_dtype": "fp8"},
    {"speculate": "ngram", "drafts": 3},
    {"switch_off": ("kernels",)},
    {"switch_off": ("overlap",)},
]


@pytest.mark.parametrize("settings", first(SETTINGS, 5), ids=str)
def test_a_prefix_that_the_pool_gave_up_comes_back_with_the_same_answer(on_a_cpu, settings):
    with LLM(**PLAIN | {"cache_tokens": SMALL["cache_tokens"], "token_budget": 64} | settings) as llm:
        wanted, _ = ask(llm, PROMPT)
    size = settings.get("page_size", 16)
    with LLM(**PLAIN | SMALL | settings) as llm:
        assert ask(llm, PROMPT) == (wanted, 0)
        evict(llm)
        before = llm.core.metrics().cache.host.hit_positions
        assert ask(llm, PROMPT) == (wanted, 299 // size * size)
        usage = llm.core.metrics().cache.host
        assert usage.hit_positions > before == 0 and usage.lost == 0 and usage.evictions == 0
        assert 0 < usage.pages <= usage.most_pages


@pytest.mark.parametrize("speculate", [{}, {"speculate": "ngram", "drafts": 3}], ids=str)
def test_an_answer_keeps_to_its_grammar_behind_pages_that_came_back(on_a_cpu, speculate):
    settings = PLAIN | {"model": "random:tiny-qwen3"} | speculate  # a token per byte
    asked = SamplingParams(max_tokens=40, temperature=1.0, seed=7, structured={"regex": r"(ab|[0-9]{4}-)+c"})
    with LLM(**settings) as llm:
        (wanted,) = llm.generate([PROMPT], asked)
    assert re.fullmatch(r"(ab|[0-9]{4}-)+c", wanted.text) or wanted.finish_reason == "length"
    with LLM(**settings | SMALL) as llm:
        for cached in (0, 288):
            (found,) = llm.generate([PROMPT], asked)
            assert (found.token_ids, found.cached_tokens) == (wanted.token_ids, cached)
            evict(llm)


def test_what_host_memory_keeps_is_counted_in_sequences(on_a_cpu):
    with LLM(**PLAIN | SMALL) as llm:
        places = llm.core.metrics().cache.host.most_pages
        assert llm.kept_by_length == {400: places // 25} and llm.sequences_by_length == {400: 1}
    with LLM(**PLAIN) as llm:
        assert llm.kept_by_length == {}


def test_salts_are_kept_apart_in_host_memory(on_a_cpu):
    with LLM(**PLAIN | SMALL) as llm:
        ask(llm, PROMPT, "ann")
        evict(llm)
        assert [ask(llm, PROMPT, salt)[1] for salt in (None, "bob")] == [0, 0]
        evict(llm)
        assert ask(llm, PROMPT, "ann")[1] == 288


def test_several_that_begin_alike_come_back_once(on_a_cpu):
    with LLM(**PLAIN | SMALL) as llm:
        ask(llm, PROMPT)
        evict(llm)
        done = llm.generate([[*PROMPT, number] for number in range(3)], DRAWN)
        assert [each.cached_tokens for each in done] == [288] * 3
        assert llm.core.metrics().cache.host.hit_positions == 288


@pytest.mark.parametrize("settings", [{}, {"kv_dtype": "fp8"}, {"model": "random:tiny-gemma3"}])
def test_files_behind_host_memory_outlive_the_engine(on_a_cpu, tmp_path, settings):
    kept = PLAIN | SMALL | settings | {"prefix_dir": str(tmp_path / "p")}
    with LLM(**kept) as llm:
        wanted, _ = ask(llm, PROMPT)
    with LLM(**kept) as llm:
        assert ask(llm, PROMPT) == (wanted, 288)
        assert llm.core.metrics().cache.disk.hit_positions == 288
        evict(llm)
        assert ask(llm, PROMPT) == (wanted, 288), "from host memory this time"
        assert llm.core.metrics().cache.disk.hit_positions == 288


def test_a_host_memory_too_small_for_a_prefix_keeps_its_beginning(on_a_cpu):
    with LLM(**PLAIN | SMALL) as llm:
        page = llm.core.metrics().cache.host.page_bytes
    with LLM(**PLAIN | SMALL | {"host_cache": 8.5 * page / 2**30}) as llm:
        wanted = ask(llm, PROMPT)[0]
        llm.generate([[251, *PROMPT[:280]]], DRAWN)
        assert 0 <= ask(llm, PROMPT)[1] < 288 and ask(llm, PROMPT)[0] == wanted
        assert llm.core.metrics().cache.host.pages == 8


def test_what_cannot_work_is_refused_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="host_cache is behind a GPU's memory: leave it out on a CPU"):
        LLM(**PLAIN, host_cache=1)
    with pytest.raises(ConfigError, match="host_cache does nothing with prefix_cache switched off"):
        LLM(**PLAIN, host_cache=1, switch_off=("prefix_cache",))
    for ranks in ("tensor_parallel", "pipeline_parallel"):
        with pytest.raises(ConfigError, match="host_cache does not work with tensor_parallel or pipeline_parallel yet"):
            LLM(**PLAIN, host_cache=1, **{ranks: 2})
    with pytest.raises(ConfigError, match="host_cache does nothing in phase p05"):
        LLM(**PLAIN, phase="p05", host_cache=1)
    with pytest.raises(ConfigError, match="host_cache must be a number above 0"):
        LLM(**PLAIN, host_cache=0)


def test_a_page_that_does_not_fit_is_refused(on_a_cpu):
    with pytest.raises(ConfigError, match=r"does not fit into host_cache 1e-09: raise it"):
        LLM(**PLAIN, host_cache=1e-9)
