"""Pages with the results of the scripts in benchmarks/: taken from their files, and no more than the files say."""

import json
from pathlib import Path

import pytest

from gradus.bench import report
from gradus.bench.record import scripts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


NAMES = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
SERVED = [{"rate": rate} | dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0), strict=True)) for rate in (100.0, 300.0, 200.0)]
SERVING = {
    "hardware": {"processor": "A", "cores": "2"}, "model": "m", "phase": "p03", "prompt": 5, "tokens": 6,
    "streams": [{"streams": 8, "served": SERVED, "alone": [500.0, 400.0, 900.0]}],
}  # fmt: skip


@pytest.fixture
def page(tmp_path) -> Path:
    """A script's file, and a page in docs/ that shows all scripts."""
    for folder in ("benchmarks/lessons", "docs", "reports"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks/lessons/serving_lesson.json").write_text(json.dumps(SERVING))
    file = tmp_path / "docs/page.md"
    file.write_text("".join(f"<!-- results:begin {name} -->\n<!-- results:end -->\n" for name in scripts.SCRIPTS))
    return file


def refreshed(page: Path) -> str:
    for stale in report.outdated_pages(page.parents[1] / "reports", [page]):
        report.update(stale)
    return page.read_text()


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_streams_stand_beside_the_engine_alone_by_the_medians_of_their_runs(page):
    text = refreshed(page)
    assert "**A**, 2 cores, m in p03, 5 tokens in, 6 out, all streams at once. [Samples](" in text
    assert ["8", "200", "500", "1 (2)", "3 (4)"] in cells(text)


def test_an_open_loop_stands_with_its_latencies_by_rate(page):
    row = {"rate": 8.0, "requests_s": 7.5, "ttft_ms": {"p50": 50.0, "p99": 150.0}, "tpot_ms": {"mean": 12.0}}
    found = {
        "hardware": {"processor": "A", "cores": "2"},
        "model": "m",
        "slots": 8,
        "prompt": [8, 24],
        "output": [4, 12],
    }
    found |= {"pace": {"fixed": 5.0, "row": 2.0, "token": 1.25}, "open": [row]}
    (page.parents[1] / "benchmarks/lessons/load_lesson.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert (
        "with one thread and 8 slots, 8 to 24 tokens in, 4 to 12 out, an open loop. A step takes 5 ms, 2 per row"
        in text
    )
    assert ["8", "7.5", "50", "150", "12"] in cells(text)


def test_ranks_stand_with_what_they_waited_for(page):
    """Rank 0 works for 6 of 10 ms, rank 1 for 5; only a wait inside a step is no work."""
    notes = [("step", 0, 0, 8), ("exchange", 0, 2, 4), ("step", 1, 0, 5), ("receive", 1, 5, 10)]
    found = {"hardware": {"processor": "A", "cores": "2"}, "model": "m", "tokens": 6, "runs": 3}
    found |= {"ways": {"cut": [dict(zip(("kind", "rank", "at", "until"), note, strict=True)) for note in notes]}}
    (page.parents[1] / "benchmarks/lessons/parallel_lesson.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert (
        "**A**, 2 cores, one thread per rank, m, two requests, 6 tokens out. The shortest of 3 runs. [Samples](" in text
    )
    assert ["cut", "0", "1", "2", "40 %"] in cells(text) and ["", "1", "1", "5", "50 %"] in cells(text)


def test_experts_stand_with_what_was_counted_timed_and_lost(page):
    lost = {"same": 0.5, "perplexity": 1234.5}
    found = {"hardware": {"processor": "A", "cores": "2"}, "model": "m", "experts": 8, "chosen": 2}
    found |= {"users": [2, 4, 16, 64], "predicted": [3.5, 5.4, 7.9, 8.0]}
    found["choices"] = {"fitted": {"users": [3, 4, 5, 6], "neighbors": [2, 3, 4, 5], "fullest": [2.5]}}
    found["times"] = [
        {"rows": 4, "read": [7, 8, 8], "padding": [0.5, 0.5, 0.6], "loop": [1, 2, 3], "padded": [4, 5, 6]}
    ]
    found["quality"] = [{"chosen": 4, "first": lost, "fitted": lost}]
    (page.parents[1] / "benchmarks/lessons/experts_lesson.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert "of 8, 2 for each token: m" in text and "Medians of 3 runs. [Samples](" in text
    assert ["fitted", "4.0", "5.0", "4.0", "2.5 ×"] in cells(text)
    assert ["4", "8", "2", "5", "50 %"] in cells(text)
    assert ["4 of 8", "50 %", "1,234.5", "50 %", "1,234.5"] in cells(text)


def test_a_long_prompts_chunks_stand_with_the_shortest_run_of_each(page):
    """Chunks of 30 tokens that take 1 s, and 0.02 s more for each position before them."""
    seconds = [[1.0, 9.0, 2.2], [1.5, 1.6, 2.9]]
    equal = {"chunks": [[0, 30], [30, 30], [60, 30]], "seconds": seconds}
    cut = {"chunks": [[0, 50], [50, 30], [80, 10]], "seconds": [[3.0, 2.0, 0.2], [2.0, 2.5, 0.1]]}
    found = {"hardware": {"processor": "A", "cores": "2"}, "model": "smollm2-135m", "phase": "p06"}
    found |= {"steps": {"equal": equal, "cut": cut}}
    file = page.parents[1] / "benchmarks/lessons/long_lesson.json"
    file.write_text(json.dumps(found))
    text = refreshed(page)
    assert "**A**, one thread, smollm2-135m in p06, float32, a prompt of 90 tokens." in text
    assert ["3 of equal length", "30", "1, 1.6", "1.6", "4.8"] in cells(text)
    assert ["3 of equal cost", "50 to 30", "2, 2", "1.0", "4.1"] in cells(text)
    assert "takes 1 s + 20 s for each 1,000 positions" in text and "at position 50; by FLOPs, at 3,072" in text
    assert "Tokens of a prompt per second" not in text


def test_whole_prompts_stand_with_the_rates_that_explain_them(page):
    """2 · 106,168,320 FLOPs per token at 2.12e12/s are 0.1 ms; 2 · 17,280 per pair at 3.456e12/s are 0.01 µs."""
    row = {"engine": "E", "model": "smollm2-135m", "gpu": "G", "note": "Hearsay"}
    row["tok_s"] = {str(n): 1 / (1e-4 + 1e-8 * n) for n in (1000, 10_000)}
    found = {"hardware": {"processor": "A", "cores": "2"}, "model": "smollm2-135m", "phase": "p06", "prompts": [row]}
    chunks = {"chunks": [[0, 30], [30, 30]], "seconds": [[1.0, 2.0]]}
    found["steps"] = {"equal": chunks, "cut": chunks}
    (page.parents[1] / "benchmarks/lessons/long_lesson.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert "Hearsay: E (smollm2-135m)." in text
    assert ["E, smollm2-135m", "9,091 (9,090)", "5,000 (5,000)"] in cells(text)
    assert ["E, smollm2-135m", "2.12", "3.46", "G"] in cells(text)


def test_a_session_s_first_token_stands_by_the_place_of_its_pages(page):
    row = {
        "tokens": 1000,
        "bytes": 46e6,
        "computed": 2.5,
        "fetched": 0.25,
        "found": 0.2,
        "samples": {"found": [0.2] * 3},
    }
    found = {"hardware": {"processor": "A"}, "model": "random:m", "dtype": "float32", "rows": [row]}
    (page.parents[1] / "benchmarks/lessons/tiers_lesson.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert (
        "**A**, one thread, m with random weights, float32. Seconds of the processor, medians of 3. [Samples](" in text
    )
    assert ["1,000", "46", "2,500", "250", "200"] in cells(text)


def test_agents_stand_with_what_their_sessions_left(page):
    """Losses are shown: a task that no session passed, invalid calls, sessions that ran out of time or failed."""
    session = {
        "agent": "codex", "model": "m", "task": "command", "constrained": True, "repeat": 0, "version": "1.2",
        "commit": "0123", "passed": True, "command_ran": True, "ran": True, "turns": 2, "refused": 0, "calls": 3,
        "invalid": 1, "as_text": 1, "prompt_tokens": 700, "first_call_s": 2.0, "seconds": 10.0, "ended": "by itself",
    }  # fmt: skip
    failed = session | {"repeat": 1, "passed": False, "command_ran": False, "first_call_s": None, "seconds": 300.0}
    asked = failed | {"task": "word", "command_ran": None, "ended": "exit code 1: no", "seconds": 20.0}
    found = {
        "hardware": {"processor": "A", "cores": "2"},
        "sessions": [session, failed | {"ended": "out of time"}, asked],
    }
    (page.parents[1] / "benchmarks/agents.json").write_text(json.dumps(found))
    text = refreshed(page)
    assert "**A**, 2 cores; codex 1.2. Commit 0123. [Samples](" in text and "No session passed: word." in text
    row = ["codex", "m", "constrained", "3", "1 of 3", "1 of 2", "9", "3", "3", "700", "2", "20 (300)", "1", "1"]
    assert row in cells(text) and ["command", "1 of 2"] in cells(text) and ["word", "0 of 1"] in cells(text)


def test_a_page_is_stale_when_a_file_changes(page):
    refreshed(page)
    reports = page.parents[1] / "reports"
    assert not list(report.outdated_pages(reports, [page]))
    file = page.parents[1] / "benchmarks/lessons/serving_lesson.json"
    file.write_text(json.dumps(SERVING | {"tokens": 7}))
    assert [stale.file for stale in report.outdated_pages(reports, [page])] == [page]


def test_what_was_not_measured_says_how(page):
    (page.parents[1] / "benchmarks/lessons/serving_lesson.json").unlink()
    command = "python benchmarks/lessons/serving_lesson.py --out benchmarks/lessons/serving_lesson.json"
    assert f"Not measured yet: `{command}`" in refreshed(page)
    assert (BENCHMARKS / "lessons/serving_lesson.py").is_file()
