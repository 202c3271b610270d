"""The benchmark of short prompts on a tiny model: a row for each way, and different sizes of steps in both."""

import json

import pytest

from benchmarks import short_prompts


@pytest.mark.gpu
def test_both_ways_are_measured(tmp_path, monkeypatch):
    for name, value in {"CONTEXT": 512, "LENGTHS": (1, 40), "SEQUENCES": 8, "DECODES": 4, "STEPS": 20}.items():
        monkeypatch.setattr(short_prompts, name, value)
    out = tmp_path / "short_prompts.json"
    monkeypatch.setattr(
        "sys.argv", ["short_prompts.py", "--model", "random:tiny-llama", "--commit", "0123", "--out", str(out)]
    )
    short_prompts.main()
    replayed, launched = json.loads(out.read_text())["rows"]
    assert (replayed["way"], launched["way"]) == ("replayed", "launched") and replayed["sizes"]
    for row in (replayed, launched):
        assert row["ttft_ms"].keys() == {"1", "40"} and 0 < row["step_p50_ms"] <= row["step_p95_ms"]


def test_a_prompt_is_of_its_length_and_of_the_vocabulary():
    class Tiny:
        class limits:
            vocab_size = 20

    tokens = short_prompts.prompt(Tiny, 30, number=3)
    assert len(tokens) == 30 and all(5 <= token < 15 for token in tokens)
