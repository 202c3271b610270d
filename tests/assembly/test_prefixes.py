"""Prefixes on disk with real engines: the answers are those without, from whatever settings the files come."""

import itertools
import os
import signal

import pytest

from gradus import LLM, SamplingParams
from gradus.assembly import prefixes
from gradus.cache.disk import tier as tiers
from gradus.cache.disk.folder import PrefixFolder
from gradus.engine.request import SchedulingParams
from gradus.errors import ConfigError
from gradus.loading.fingerprint import fingerprint
from tests.forked import SERVER
from tests.pairwise import first

PROMPT = [(7 * number) % 250 + 1 for number in range(300)]
PLAIN = {"model": "random:tiny-llama", "device": "cpu", "dtype": "float32", "max_sequences": 4, "context_length": 400}
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=7)


def answer(prompt=PROMPT, salt=None, **settings):
    """The tokens of a new engine, and the positions that it hit."""
    with LLM(**PLAIN | settings) as llm:
        (done,) = llm.generate([prompt], DRAWN, scheduling=SchedulingParams(cache_salt=salt))
        llm.check()
        return done.token_ids, done.cached_tokens


SETTINGS = [
    {"model": "random:tiny-gemma3"},
    {"model": "random:tiny-gemma4-e", "kv_dtype": "fp8"},
    {"speculate": "draft:random:tiny-llama", "drafts": 3},
    {"switch_off": ("kernels", "overlap", "chunked")},
    {"dtype": "bfloat16", "page_size": 8},
    # one difference each, which those before have with others
    {},
    {"kv_dtype": "fp8"},
    {"model": "random:tiny-gemma4"},
    {"speculate": "ngram", "drafts": 3},
    {"switch_off": ("kernels",)},
    {"switch_off": ("overlap", "chunked")},
]


@pytest.mark.parametrize("settings", first(SETTINGS, 5), ids=str)
def test_a_restarted_engine_hits_its_prefix_and_answers_the_same(tmp_path, settings):
    wanted, _ = answer(**settings)
    kept = settings | {"prefix_dir": str(tmp_path / "p")}
    assert answer(**kept) == (wanted, 0)
    size = settings.get("page_size", 16)
    assert answer(**kept) == (wanted, 299 // size * size)


def test_the_answer_is_kept_with_the_prompt(tmp_path):
    tokens, _ = answer(prefix_dir=str(tmp_path / "p"))
    longer = [*PROMPT, *tokens, 5]
    wanted, _ = answer(longer)
    assert answer(longer, prefix_dir=str(tmp_path / "p")) == (wanted, 304)


@pytest.mark.parametrize(
    "other",
    [{"page_size": 8}, {"kv_dtype": "fp8"}, {"model": "random:tiny-gemma3"}, {"quantize": "int4-g32"},
     {"switch_off": ("kernels",)}],
    ids=str,
)  # fmt: skip
def test_files_of_other_settings_are_ignored(tmp_path, other):
    wanted, _ = answer(**other)
    answer(prefix_dir=str(tmp_path / "p"))
    assert answer(prefix_dir=str(tmp_path / "p"), **other) == (wanted, 0)


def test_files_of_another_version_of_the_code_are_ignored(tmp_path, monkeypatch):
    answer(prefix_dir=str(tmp_path / "p"))
    monkeypatch.setattr(prefixes, "_code", lambda: "another")
    assert answer(prefix_dir=str(tmp_path / "p"))[1] == 0


def test_salts_are_kept_apart_on_disk(tmp_path):
    kept = {"prefix_dir": str(tmp_path / "p")}
    answer(salt="ann", **kept)
    assert [answer(salt=salt, **kept)[1] for salt in (None, "bob", "ann")] == [0, 0, 288]


def test_prompt_logprobs_are_computed_whole(tmp_path):
    kept = PLAIN | {"prefix_dir": str(tmp_path / "p")}
    answer(prefix_dir=kept["prefix_dir"])
    with LLM(**kept) as llm:
        asked = SamplingParams(max_tokens=2, prompt_logprobs=0)
        (done,) = llm.generate([PROMPT], asked)
        assert done.cached_tokens == 0 and len(done.prompt_logprobs) == len(PROMPT) - 1


def test_several_that_begin_alike_load_once(tmp_path):
    kept = PLAIN | {"prefix_dir": str(tmp_path / "p")}
    answer(prefix_dir=kept["prefix_dir"])
    with LLM(**kept) as llm:
        done = llm.generate([[*PROMPT, number] for number in range(6)], DRAWN)
        assert [each.cached_tokens for each in done] == [288] * 6
        assert llm.core.metrics().cache.disk.hit_positions == 288
        llm.check()


def test_a_prefix_that_memory_gave_up_comes_back_from_disk(tmp_path):
    small = {"prefix_dir": str(tmp_path / "p"), "cache_tokens": 400}
    with LLM(**PLAIN | small) as llm:
        for prompt in (PROMPT, PROMPT[::-1], PROMPT):
            (done,) = llm.generate([prompt], DRAWN)
        assert done.cached_tokens == 288 and llm.core.metrics().cache.disk.hit_positions > 0


def test_a_thread_that_fails_leaves_an_engine_without_a_disk(tmp_path, monkeypatch, caplog):
    answer(prefix_dir=str(tmp_path / "p"))
    wanted, _ = answer()
    monkeypatch.setattr(tiers.DiskTier, "_fill", lambda self, load: 1 / 0)
    assert answer(prefix_dir=str(tmp_path / "p")) == (wanted, 0)
    assert "neither saved nor loaded" in caplog.text


def test_settings_that_do_nothing_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="prefix_dir_size does nothing without prefix_dir"):
        LLM(**PLAIN, prefix_dir_size=1.0)
    with pytest.raises(ConfigError, match="does not fit into prefix_dir_size"):
        LLM(**PLAIN, prefix_dir=str(tmp_path / "p"), prefix_dir_size=1e-9)
    with pytest.raises(ConfigError, match="prefix_dir does nothing in phase p05"):
        LLM(**PLAIN, phase="p05", prefix_dir=str(tmp_path / "p"))


def test_the_directory_is_free_again_once_an_engine_is_closed(tmp_path):
    for _ in range(2):
        with LLM(**PLAIN, prefix_dir=str(tmp_path / "p")), pytest.raises(ConfigError, match="in use by another engine"):
            LLM(**PLAIN, prefix_dir=str(tmp_path / "p"))


TORCH = {"switch_off": ("kernels",)}  # a new process need not load them


def write_and_die(folder: str) -> None:
    """Write 11 files and the beginning of another."""
    write, count = PrefixFolder._write, itertools.count(1)

    def then_die(self, path, *parts):
        if next(count) == 12:
            write(self, path, parts[0], parts[1][:1000])
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, path, *parts)

    PrefixFolder._write = then_die
    answer(prefix_dir=folder, **TORCH)


def test_an_engine_killed_while_it_writes_loses_only_what_was_not_written(tmp_path):
    process = SERVER.Process(target=write_and_die, args=[str(tmp_path / "p")])
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    wanted, _ = answer(**TORCH)
    assert answer(prefix_dir=str(tmp_path / "p"), **TORCH) == (wanted, 11 * 16)


# -- the weights -------------------------------------------------------------------------------------------------------


class Found:
    def __init__(self, source):
        self.name, self.source = "model", source


def test_a_fingerprint_notices_other_bytes_of_the_same_size_and_time(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    seen = set()
    for content in (bytes(1 << 20), bytes(1 << 19) + b"\1" * 40_000 + bytes((1 << 19) - 40_000)):
        weights.write_bytes(content)
        os.utime(weights, ns=(5, 5))
        seen.add(fingerprint(Found(tmp_path)))
    os.utime(weights, ns=(6, 6))
    seen.add(fingerprint(Found(tmp_path)))
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    seen.add(fingerprint(Found(tmp_path)))
    assert len(seen) == 4
    (tmp_path / "notes.txt").write_text("")
    assert fingerprint(Found(tmp_path)) in seen


def test_a_fingerprint_of_a_file_covers_its_parts_and_no_other_model(tmp_path):
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    alone, parts = fingerprint(Found(tmp_path / "b.gguf")), fingerprint(Found(tmp_path / "a-00001-of-00002.gguf"))
    (tmp_path / "a-00002-of-00002.gguf").write_bytes(b"changed")
    assert fingerprint(Found(tmp_path / "b.gguf")) == alone
    assert fingerprint(Found(tmp_path / "a-00001-of-00002.gguf")) != parts
