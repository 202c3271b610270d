"""The script for p12's ranks runs; its recorded file has the demo's ways to cut, and shows what the lesson says."""

import json
import sys

import pytest

from benchmarks.lessons import parallel_lesson as script
from gradus.course.figures.parallel import ranks, recorded
from phases.p12_parallelism import watch
from phases.p12_parallelism.demo import WAYS
from tests.course.test_scripts_parallel import in_threads  # noqa: F401  # ranks as threads, as a fixture

FOUND = json.loads(recorded.RECORDING.read_text(encoding="utf-8"))


def test_it_keeps_the_shortest_run_of_each_way(tmp_path, monkeypatch):
    for name, value in (("MODEL", "random:tiny-llama"), ("TOKENS", 2), ("RUNS", 2)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(sys, "argv", ["parallel_lesson.py", "--commit", "abc", "--out", str(tmp_path / "out.json")])
    script.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found["ways"]) == [name for name, *_ in WAYS]
    for notes in found["ways"].values():
        assert notes[0]["at"] == 0 and {note["rank"] for note in notes} == {0, 1}


def test_what_was_kept_is_of_the_demo_s_ways():
    assert list(FOUND["ways"]) == [name for name, *_ in WAYS] == list(ranks.SHOWN)
    assert (FOUND["model"], FOUND["tokens"], FOUND["runs"]) == (script.MODEL, script.TOKENS, script.RUNS)
    for name, _, stages, micro_batches in WAYS:
        notes = recorded.ways()[name]
        for rank in range(2):
            mine = [note for note in notes if note.rank == rank]
            assert sum(note.kind == "step" for note in mine) == script.TOKENS * micro_batches
            # GPT-2 has 12 layers
            exchanges = script.TOKENS * (2 * 12 + 2) if stages == 1 else 0
            assert sum(note.kind == "exchange" for note in mine) == exchanges


@pytest.mark.parametrize("name", ranks.SHOWN)
def test_the_figure_s_window_has_decodes_of_both_ranks(name):
    notes = recorded.ways()[name]
    start, end = ranks.window(notes, ranks.SHOWN[name], 1 + max(note.micro_batch for note in notes))
    for rank in range(2):
        assert any(start <= at and until <= end for at, until in watch.busy(notes, rank))


def test_the_lesson_says_of_the_recording_what_is_true():
    """That matrices have both ranks wait alike, that one micro-batch leaves one rank idle at a time, and that a second
    one fills the last stage, whose steps take longer."""
    tensor, one, two = ([watch.waiting(notes, rank) for rank in range(2)] for notes in recorded.ways().values())
    assert tensor[0] == pytest.approx(tensor[1], abs=0.05)
    assert sum(one) > 0.85 and two[1] < 0.1 < 0.3 < two[0]
    busy = [[until - at for at, until in watch.busy(list(recorded.ways().values())[2], rank)] for rank in range(2)]
    assert sum(busy[1]) > 1.2 * sum(busy[0])
