"""The script behind p05's page on tiers measures what it says, and its recorded file bears out the page."""

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.lessons import tiers_lesson as script
from tests.phases.conftest import tiny_model

ROOT = Path(script.__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks/lessons/tiers_lesson.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "phases/p05_prefix_cache/tiers.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def test_each_way_finds_the_session_where_it_should():
    engine = script.engine_of(tiny_model("tiny-llama"), 100)
    cache, prompt = engine.scheduler.cache, list(range(100))
    script.first_token(engine, prompt, time.perf_counter)
    for way, hit, fetched in (("found", 96, 0), ("fetched", 96, 96), ("computed", 0, 0)):
        script.prepare(cache, way)
        before = cache.hit_positions, cache.fetched_positions
        assert script.first_token(engine, prompt, time.perf_counter) > 0
        assert (cache.hit_positions - before[0], cache.fetched_positions - before[1]) == (hit, fetched)


def test_a_quick_look_writes_a_row_into_a_folder_that_was_not_there(tmp_path, monkeypatch):
    out, threads = tmp_path / "my-reports" / "tiers.json", torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["tiers_lesson.py", "--quick", "--out", str(out)])
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)
    (row,) = json.loads(out.read_text())["rows"]
    config = tiny_model("tiny-llama").config
    assert row["bytes"] == 96 * 2 * 4 * config.num_layers * config.kv_width
    assert {len(row["samples"][way]) for way in script.WAYS} == {2}


def test_fetching_beats_computing_at_every_length_and_the_more_the_longer():
    gains = [row["computed"] / row["fetched"] for row in FOUND["rows"]]
    assert gains == sorted(gains) and gains[0] > 1
    first, last = FOUND["rows"][0]["tokens"], FOUND["rows"][-1]["tokens"]
    assert f"{gains[0]:.0f} times at {first} tokens, {gains[-1]:.0f} times at {last:,}." in WORDS


def test_the_copy_is_the_difference_between_fetching_and_finding():
    short, *rows = FOUND["rows"]
    copies = [1e3 * (row["fetched"] - row["found"]) for row in rows]
    assert copies == sorted(copies) and copies[0] > 0
    assert (
        "{:.0f} ms, {:.0f} ms and {:.0f} ms for {} tokens".format(
            *copies, "{:,}, {:,} and {:,}".format(*(row["tokens"] for row in rows))
        )
        in WORDS
    )
    spread = max(short["samples"]["fetched"]) - min(short["samples"]["fetched"])
    assert abs(short["fetched"] - short["found"]) < spread


def test_the_engine_s_times_on_the_page_are_those_that_were_measured():
    rows = json.loads((ROOT / "benchmarks/host_tier.json").read_text(encoding="utf-8"))["rows"]
    took = next(row["first_token"]["ttft_ms"] for row in rows if "first_token" in row)
    assert (
        f"takes {took['computed']:.0f} ms computed, {took['host']:.0f} ms fetched from host memory, {took['disk']:.0f} "
        f"ms from files in the system's page cache, and {took['gpu']:.0f} ms found in the pool"
    ) in WORDS
