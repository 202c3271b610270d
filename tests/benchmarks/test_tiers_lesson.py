"""The page on tiers shows what was measured, and what it says of the table is so; the script measures what it says."""

import json
from pathlib import Path

from benchmarks.lessons import tiers_lesson as script
from tests.phases.conftest import tiny_model

FOLDER = Path(script.__file__).parent
FOUND = json.loads((FOLDER / "tiers_lesson.json").read_text(encoding="utf-8"))
PAGE = (FOLDER.parents[1] / "phases/p05_prefix_cache/tiers.md").read_text(encoding="utf-8")


def test_the_page_shows_the_table_that_was_measured():
    assert script.table(FOUND) in PAGE


def test_fetching_beats_computing_at_every_length_and_the_more_the_longer():
    gains = [row["computed"] / row["fetched"] for row in FOUND["rows"]]
    assert gains == sorted(gains) and gains[0] > 1


def test_each_way_finds_the_session_where_it_should():
    engine = script.engine_of(tiny_model("tiny-llama"), 100)
    cache, prompt = engine.scheduler.cache, list(range(100))
    script.first_token(engine, prompt)
    for way, hit, fetched in (("found", 96, 0), ("fetched", 96, 96), ("computed", 0, 0)):
        script.prepare(cache, way)
        before = cache.hit_positions, cache.fetched_positions
        assert script.first_token(engine, prompt) > 0
        assert (cache.hit_positions - before[0], cache.fetched_positions - before[1]) == (hit, fetched)


def test_a_short_run_has_a_row_for_each_length():
    row = script.measured(tiny_model("tiny-llama"), 100, 1)
    config = tiny_model("tiny-llama").config
    assert row["bytes"] == 96 * 2 * 4 * config.num_layers * config.kv_width
    assert {len(row["samples"][way]) for way in script.WAYS} == {1}
