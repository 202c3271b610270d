"""The rate that servers keep: both are asked for the same, and the tables say what the file says."""

import argparse
import json
from dataclasses import replace

import pytest

from benchmarks import goodput
from benchmarks.goodput import REHEARSAL, WHOLE, Measuring
from benchmarks.server_beside_vllm import OURS, THEIRS, our_command, vllm_command
from gradus.bench import report
from gradus.bench.record.goodput_tables import curve_rows, goodput_rows, users_rows


def load(rate: float, good: float, *, early: bool = False) -> dict:
    times = {"p50": rate / 10, "p99": rate}
    return {"rate": rate, "good_share": good, "stopped_early": early, "ttft_ms": times, "tpot_ms": times,
            "output_tok_s": 100 * rate}  # fmt: skip


def block(engine: str, best: float, failed: float, users: dict[int, float]) -> dict:
    return {
        "engine": engine,
        "loads": [load(failed, 0.5, early=True), load(best, 0.995)],
        "found": {"best": best, "failed": failed, "whole": True, "unsent": None},
        "users": {str(count): [{"output_tok_s": rate}, {"output_tok_s": rate}] for count, rate in users.items()},
    }


RUN = {
    "hardware": {"gpu": "A GPU"}, "commit": "abc123", "vllm": "9.9", "share": 0.99, "objective": "TTFT ≤ 200 ms",
    "crowd": [128, 128],
    "blocks": {
        "A1": block(OURS, 120.0, 126.0, {1: 100.0, 128: 2000.0}),
        "B": block(THEIRS, 60.0, 63.0, {1: 100.0, 128: 1400.0}),
        "A2": {"engine": OURS, "failed": "no GPU"},
    },
}  # fmt: skip


def test_a_rate_is_shown_with_how_it_was_there_and_beside_vllms():
    _, rows = goodput_rows({"m": RUN})
    assert rows == [["m", "Gradus", "120", "126", "120", "120", "12,000", "2.00 ×"],
                    ["m", "vLLM", "60", "63", "60", "60", "6,000", ""]]  # fmt: skip


def test_a_curve_grows_and_says_what_ended_early():
    _, rows = curve_rows({"m": RUN})
    assert [row[1:4] for row in rows] == [
        ["Gradus", "120", "99.5 %"],
        ["Gradus", "126", "50.0 %, ended early"],
        ["vLLM", "60", "99.5 %"],
        ["vLLM", "63", "50.0 %, ended early"],
    ]


def test_a_crowds_gain_is_over_one_user_and_judged_for_ours():
    header, rows = users_rows({"m": RUN})
    assert header[2:4] == ["1 user", "128 users"]
    assert rows == [["m", "Gradus", "100", "2,000", "20.0 ×", "15 ×", "yes"],
                    ["m", "vLLM", "100", "1,400", "14.0 ×", "", ""]]  # fmt: skip
    few = RUN | {"blocks": {"A1": block(OURS, 1.0, 2.0, {1: 100.0, 128: 1490.0})}}
    assert users_rows({"m": few})[1][0][-1] == "no"


def test_without_vllm_no_ratio_is_shown():
    alone = RUN | {"blocks": {"A1": RUN["blocks"]["A1"]}}
    assert goodput_rows({"m": alone})[1][0][-1] == ""


def test_a_page_shows_what_the_file_says(tmp_path):
    for folder in ("benchmarks", "docs", "reports"):
        (tmp_path / folder).mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("<!-- results:begin goodput -->\n<!-- results:end -->\n<!-- results:begin goodput-users -->\n"
                    "<!-- results:end -->\n")  # fmt: skip
    (tmp_path / "benchmarks" / "goodput.json").write_text(json.dumps({"runs": {"m": RUN}}))
    for stale in report.outdated_pages(tmp_path / "reports", [page]):
        report.update(stale)
    text = page.read_text()
    assert "**A GPU**, vLLM 9.9. 99% of the requests keep TTFT ≤ 200 ms. Commit abc123." in text
    assert "| m | Gradus | 120 |" in text and "20.0 ×" in text and "(../benchmarks/goodput.json)" in text


def test_both_servers_have_room_for_the_longest_request(tmp_path):
    options = argparse.Namespace(device="cpu", dtype="float32", sequences=4, context=WHOLE.context, vllm=tmp_path)
    for command in (our_command, vllm_command):
        assert str(WHOLE.context) in command(tmp_path, 1, options).arguments
    assert WHOLE.context > 3800 and REHEARSAL.context < 128


def test_runs_of_other_shapes_stay_in_the_file(tmp_path):
    out = tmp_path / "found.json"
    for shape in ("one", "two", "one"):
        options = argparse.Namespace(out=out, shape=shape)
        Measuring(options, REHEARSAL, tmp_path, {"blocks": {}}).write()
    assert list(json.loads(out.read_text())["runs"]) == ["one", "two"]


@pytest.mark.slow
def test_the_rehearsal_measures_a_real_server(tmp_path, monkeypatch):
    """The rate is a few requests per second: the search ends with the first one that is kept."""
    search = replace(REHEARSAL.search, budget=1.0)
    monkeypatch.setattr(goodput, "REHEARSAL", replace(REHEARSAL, search=search))
    out = tmp_path / "goodput.json"
    monkeypatch.setattr("sys.argv", [
        "goodput.py", "--quick", "--shape", "tiny-llama", "--tokenizer", "random:tiny-llama", "--device", "cpu",
        "--dtype", "float32", "--out", str(out), "--repeats", "1", "--first-rate", "4",
    ])  # fmt: skip
    assert goodput.main() == 0
    (run,) = json.loads(out.read_text())["runs"].values()
    assert run["blocks"]["A1"]["found"]["best"] > 0 and set(run["blocks"]["A1"]["users"]) == {"1", "4"}
    assert "vllm" not in run and run["quick"]
