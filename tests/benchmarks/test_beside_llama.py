"""The race with llama.cpp: what a rate is, and which rows of an earlier run stay."""

import io
import json
import sys

import pytest

from benchmarks import beside_llama


class Clocked:
    """An engine that takes a second per token of a prompt and two per token after the first."""

    uses = "a clock"

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, arrivals):
        self.now += sum(len(each.prompt) + 2 * (each.max_tokens - 1) for each in arrivals)


@pytest.mark.parametrize(
    ("streams", "length", "answer", "expected"), [(1, 64, 1, 1.0), (1, 16, 33, 0.5), (8, 16, 33, 0.5), (1, 16, 2, 0.5)]
)
def test_a_rate_is_of_the_prompt_or_of_the_tokens_after_the_first(streams, length, answer, expected):
    engine = Clocked()
    assert beside_llama.rate(engine, lambda: engine.now, streams, length, answer, 0) == pytest.approx(expected)


def test_prompts_of_two_rounds_differ(monkeypatch):
    """A prefix cache would find the same one again."""
    seen = []
    monkeypatch.setattr(beside_llama, "seconds", lambda engine, clock, prompts, answer: seen.append(prompts) or 1.0)
    for turn in range(2):
        beside_llama.rate(None, lambda: 0.0, 2, 64, 1, turn)
    assert len({prompt for prompts in seen for prompt in prompts}) == 4


def test_rows_that_are_measured_again_are_replaced():
    def row(ratio, **other):
        return (
            {"features": "avx2", "threads": 1, "model": "m", "kind": "int8", "row": "decode 1"} | other | {"r": ratio}
        )

    before = [row(1), row(2, threads=2), row(3, features="all"), row(4, kind="int4")]
    assert [each["r"] for each in beside_llama.merged(before, [row(5), row(6, row="decode 8")])] == [2, 3, 4, 5, 6]


def test_a_process_answers_each_question_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr(beside_llama, "Theirs", lambda model, file, source: Clocked())
    monkeypatch.setattr(beside_llama, "peak_mb", lambda: 7.0)
    monkeypatch.setattr(beside_llama, "rate", lambda engine, clock, *task: sum(task))
    monkeypatch.setattr(sys, "stdin", io.StringIO('null\n"memory"\n[1, 2, 3, 4]\n'))
    beside_llama.serve(beside_llama.THEIRS, "m", "int8", None, 1)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ["a clock", 7.0, 10]
