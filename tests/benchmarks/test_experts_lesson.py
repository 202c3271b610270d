"""The script for p14 runs with a tiny model; its recorded file shows what the lesson says."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from benchmarks.lessons import experts_lesson as script
from gradus.models.config import Experts

FOUND = json.loads((Path(script.__file__).parent / "experts_lesson.json").read_text(encoding="utf-8"))


def test_it_keeps_every_part_and_those_that_are_not_asked_for(tmp_path, monkeypatch):
    out, tokens = tmp_path / "out.json", (list(range(3, 90)), list(range(50, 150)))
    for name, value in {
        "MODEL": "random:tiny-llama", "COUNT": 8, "LAYERS": (0, 2), "DRAWS": 2, "USERS": (1, 4), "ROWS": (1, 4),
        "RUNS": 2, "WARM": 3, "LAYER": {"hidden": 8, "experts": Experts(4, 2, 6)}, "texts": lambda model: tokens,
    }.items():  # fmt: skip
        monkeypatch.setattr(script, name, value)
    for parts in (["choices", "quality"], ["times"]):
        monkeypatch.setattr(sys, "argv", ["x.py", "--commit", "abc", "--out", str(out), "--parts", *parts])
        script.main()
    found = json.loads(out.read_text())
    assert list(found["choices"]) == ["random", "random, corrected", "fitted", "fitted, corrected"]
    assert all(row["users"][0] == 2 for row in found["choices"].values()), "one token reads what it takes"
    assert [row["rows"] for row in found["times"]] == [1, 4] and len(found["times"][0]["loop"]) == 2
    assert found["quality"][0]["fitted"]["same"] == 1


def test_the_lesson_says_of_the_choices_what_is_true():
    predicted = FOUND["predicted"]
    for name in ("random", "fitted"):
        plain, fixed = FOUND["choices"][name], FOUND["choices"][f"{name}, corrected"]
        assert 3 < plain["fullest"][0] < 6 and 2 < fixed["fullest"][0] < 2.5
        assert all(read <= right + 0.05 for read, right in zip(plain["users"], predicted, strict=True))
        assert all(right / read <= 1.105 for read, right in zip(fixed["users"], predicted, strict=True))
        place = FOUND["users"].index(16)
        assert plain["neighbors"][place] < plain["users"][place] and fixed["neighbors"][place] < fixed["users"][place]


def test_the_lesson_says_of_the_times_what_is_true():
    rows = {row["rows"]: row for row in FOUND["times"]}
    took = {way: {count: median(row[way]) for count, row in rows.items()} for way in ("loop", "padded")}
    assert all(took["loop"][a] < took["loop"][b] for a, b in pairwise((1, 2, 4, 8)))
    assert took["padded"][1] > 2 * took["loop"][1] and took["loop"][256] < took["padded"][256]
    assert all(took["padded"][count] < took["loop"][count] for count in (8, 16, 32, 64))
    assert median(rows[8]["read"]) > 26


def test_the_lesson_says_of_left_out_slices_what_is_true():
    rows = {row["chosen"]: row for row in FOUND["quality"]}
    dense = rows[16]["fitted"]["perplexity"]
    assert rows[15]["fitted"]["perplexity"] / dense == pytest.approx(1.07, abs=0.01)
    assert rows[8]["fitted"]["perplexity"] / dense == pytest.approx(12, abs=1)
    assert all(row["fitted"]["perplexity"] <= row["first"]["perplexity"] for row in rows.values())
