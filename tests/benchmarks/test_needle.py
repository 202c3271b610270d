"""The needle study's script: what is carried, what a run leaves that was cut off, and what it refuses."""

import argparse
import json
from dataclasses import replace

import pytest

from benchmarks import needle
from gradus.bench.studies.needle import Answer, Reading
from gradus.bench.studies.needle_text import Hay
from gradus.errors import ConfigError
from gradus.loading import Tokenizer, open_checkpoint

TEXT = " ".join(f"It rained on day {n}." for n in range(400))


@pytest.fixture(scope="module")
def study() -> needle.Study:
    hay = Hay.of("rain", TEXT, Tokenizer.of_bytes())
    haystacks = [hay.haystack(length, number, 2, tail=16) for length in (600, 700) for number in range(2)]
    return needle.Study(hay.name, hay.digest, haystacks)


def some_of(study: needle.Study, lengths: list[int], haystacks: int) -> list[tuple[int, tuple[int, ...]]]:
    found = needle.some_of(study, argparse.Namespace(lengths=lengths, haystacks=haystacks))
    return [(each.length, each.token_ids) for each in found.haystacks]


def test_a_carried_study_keeps_every_token_under_its_new_number(study):
    checkpoint = open_checkpoint("random:tiny-qwen2")
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, vocab_size=100_000))
    cut, renumbered = needle.cut_study(study, checkpoint)
    assert len(cut.kept) < 1000
    for before, after in zip(study.haystacks, renumbered.haystacks, strict=True):
        assert tuple(cut.kept[token] for token in after.token_ids) == before.token_ids
        for old, new in zip(before.questions, after.questions, strict=True):
            assert tuple(cut.kept[token] for token in (*new.token_ids, *new.answer)) == (*old.token_ids, *old.answer)


def test_some_of_a_carried_study_are_the_first_of_each_length(study):
    every = [(each.length, each.token_ids) for each in study.haystacks]
    assert some_of(study, [], 10) == every
    assert some_of(study, [700], 1) == every[2:3]
    with pytest.raises(ConfigError, match=r"--lengths 800: the carried study has \[600, 700\]"):
        some_of(study, [600, 800], 1)


def test_a_run_that_fails_half_way_leaves_what_it_has_read(monkeypatch, tmp_path):
    """Each haystack is read once with each format, although its length is given twice."""

    def read_all(checkpoint, haystacks, kv_dtype, **settings):
        for haystack in haystacks[: 1 if kv_dtype == "fp8" else None]:
            yield Reading(tuple(Answer(each.depth, True, -0.5) for each in haystack.questions), 2.0, 0.1, "float32")
        if kv_dtype == "fp8":
            raise RuntimeError("the GPU is gone")

    monkeypatch.setattr(needle, "read_all", read_all)
    out = tmp_path / "new" / "found.json"
    with pytest.raises(RuntimeError):
        needle.main(["--quick", "--device", "cpu", "--lengths", "512", "512", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [(row["kv_dtype"], len(row["found"])) for row in found["rows"]] == [("auto", 2), ("fp8", 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--haystacks", "0"], "--haystacks must be at least 1, got 0"),
        (["--carried", "there", "--model", "mine"], "--carried has its own model and text"),
    ],
)
def test_arguments_that_cannot_be_met_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        needle.main(arguments)
    assert said in capsys.readouterr().err


def test_a_text_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"--text {tmp_path}: .*: name a file of plain UTF-8"):
        needle.main(["--quick", "--text", str(tmp_path)])
