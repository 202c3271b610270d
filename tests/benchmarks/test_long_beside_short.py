"""The benchmark of a long prompt among conversations runs without a GPU, and the page has what it found."""

import json
from pathlib import Path

import pytest

from benchmarks import long_beside_short

ROOT = Path(__file__).parents[2]
ANSWERED = ROOT / "benchmarks" / "answered"
PAGE = (ROOT / "docs" / "design" / "p06.md").read_text(encoding="utf-8")


def found(name: str) -> dict:
    return json.loads((ANSWERED / name).read_text(encoding="utf-8"))


def test_the_page_has_what_was_simulated():
    assert long_beside_short.table(found("long_beside_short_roofline.json")["shapes"]) in PAGE
    assert long_beside_short.table_of_mixes(found("full_loads_roofline.json")) in PAGE


def test_the_promise_holds_in_what_was_simulated_and_ordinary_loads_lose_nothing():
    for shape in found("long_beside_short_roofline.json")["shapes"]:
        served = next(row for row in shape["rows"] if row["way"] == "slowdown 1.4")
        assert served["tpot_ratio"]["p50"] < 1.45 and served["tpot_ratio"]["p99"] <= 1.5
    rows = found("full_loads_roofline.json")["rows"]
    for without, served in list(zip(rows[::2], rows[1::2], strict=True))[:4]:
        assert served["output_tok_s"] > 0.99 * without["output_tok_s"], without["load"]


def test_a_small_simulation_reads_the_prompt_and_slows_the_others_as_promised(tmp_path):
    out = tmp_path / "found.json"
    sizes = ["--streams", "4", "--prompt", "50", "--answer", "60", "--long", "110000"]
    assert long_beside_short.main(["--simulated", "--only-served", *sizes, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["long_tokens"] == 110_000 and row["chunks"] > 20
    assert 1.2 < row["tpot_ratio"]["p50"] < 1.6
    assert row["long_ttft_s"] > 2 * row["long_alone_s"]


def test_a_prompt_that_was_cancelled_is_not_shown_as_read():
    found_there = found("long_beside_short_roofline.json")["shapes"][:1]
    row = found_there[0]["rows"][0] | {"long_ttft_s": None, "long_seconds": 45.0}
    assert "| over 45.0, 1.5 s |" in long_beside_short.table([found_there[0] | {"rows": [row]}])


def test_times_per_token_count_the_tokens_between_two_moments():
    times = {"a": [float(number) for number in range(100)], "b": [0.0, 200.0]}
    made = long_beside_short.phase(times, 10.0, 90.0)
    assert made["conversations"] == 1 and made["tpot_ms"]["p50"] == 1000
    assert made["output_tok_s"] == pytest.approx(81 / 80, rel=1e-3)
