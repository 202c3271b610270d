"""The benchmark of a long prompt among conversations runs without a GPU, and the page has what it found."""

import json
from pathlib import Path

import pytest

from benchmarks import long_beside_short
from gradus.config.options import SERVED_SLOWDOWN
from gradus.errors import ConfigError

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
        promised = {float(row["way"].split()[1]): row["tpot_ratio"] for row in shape["rows"][1:]}
        assert SERVED_SLOWDOWN in promised
        assert all(each["p50"] < most + 0.05 and each["p99"] <= most + 0.1 for most, each in promised.items())
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


def test_a_small_model_is_measured_in_an_engine_that_times_its_steps_as_a_servers_does(tmp_path, monkeypatch):
    out, targets, read_alone = tmp_path / "found.json", [], long_beside_short.read_alone

    def look(engine, *others):
        targets.append(engine.scheduler.target)
        return read_alone(engine, *others)

    monkeypatch.setattr(long_beside_short, "read_alone", look)
    assert long_beside_short.main(["--quick", "--device", "cpu", "--slowdowns", "2", "--out", str(out)]) == 0
    assert [(each.seconds, each.slowdown) for each in targets] == [long_beside_short.SERVED]
    found = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in found] == ["no step target", f"slowdown {SERVED_SLOWDOWN:g}", "slowdown 2"]
    assert all(row["long_tokens"] == 300 and row["long_ttft_s"] > 0 for row in found)


def test_a_slowdown_that_could_not_be_served_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^slowdown must be a number above 1, got 0\.5$"):
        long_beside_short.main(["--simulated", "--slowdowns", "0.5", "--out", str(tmp_path / "none.json")])


def test_times_per_token_count_the_tokens_between_two_moments():
    times = {"a": [float(number) for number in range(100)], "b": [0.0, 200.0]}
    made = long_beside_short.phase(times, 10.0, 90.0)
    assert made["conversations"] == 1 and made["tpot_ms"]["p50"] == 1000
    assert made["output_tok_s"] == pytest.approx(81 / 80, rel=1e-3)
