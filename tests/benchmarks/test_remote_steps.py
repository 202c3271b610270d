"""The benchmark of a remote runner's cost runs, and the page has its numbers."""

import json
from pathlib import Path

from benchmarks import remote_steps

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks" / "remote_steps.json").read_text(encoding="utf-8"))


def test_the_page_has_the_numbers_that_were_measured():
    assert remote_steps.table(FOUND) in (ROOT / "docs" / "design" / "remote.md").read_text(encoding="utf-8")


def test_every_plan_of_the_benchmark_is_one_that_a_runner_takes(tmp_path):
    rows = list(remote_steps.rows(40))
    assert [row["batch"] for row in rows] == [batch for batch in remote_steps.BATCHES for _ in range(2)]
    assert all(row["step_us"] > 0 for row in rows)
