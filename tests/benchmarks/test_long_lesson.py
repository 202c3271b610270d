"""The script behind p09's second page runs; its recorded file matches the present chunks, and bears out the page."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.lessons import long_lesson as script
from gradus.bench.record.long_tables import line, prompt_tables, steps
from gradus.models.shapes import SHAPES
from phases.p09_triton_attention.chunks import Sizes, cut, even, flops, most_tokens
from phases.p09_triton_attention.cycles import per_score, reached
from tests.phases.conftest import tiny_model

ROOT = Path(script.__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks/lessons/long_lesson.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "phases/p09_triton_attention/long.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
EQUAL, CUT = (steps(FOUND, way) for way in ("equal", "cut"))


def test_a_step_runs_one_chunk_and_the_last_one_is_sampled_from():
    model = tiny_model("tiny-llama")
    found = script.ways(Sizes.of(model.config), 50, 4)
    assert found["equal"] == [(0, 13), (13, 13), (26, 13), (39, 11)]
    assert found["cut"][0][1] > found["cut"][-2][1], "later chunks are shorter"
    for chunks in found.values():
        assert len(script.run(model, chunks, 0)) == len(chunks)


def test_a_new_row_replaces_the_same_engines_for_the_same_model():
    rows = [{"engine": "vLLM", "model": "a"}, {"engine": "Gradus", "model": "a"}]
    new = {"engine": "Gradus", "model": "a", "tok_s": {}}
    assert script.replaced(rows, new) == [rows[0], new]
    other = {"engine": "Gradus", "model": "b"}
    assert script.replaced(rows, other) == [*rows, other] and script.replaced([], new) == [new]


@pytest.mark.stress
def test_a_quick_look_measures_both_parts(tmp_path, monkeypatch):
    out, threads = tmp_path / "my-reports" / "long.json", torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["long_lesson.py", "--quick", "--commit", "abc", "--out", str(out)])
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)
    found = json.loads(out.read_text())
    (row,) = found["prompts"]
    assert (found["model"], row["model"], set(row["tok_s"])) == ("tiny-llama", "tiny-llama", {"40", "80", "160"})
    assert all(took > 0 for one in found["steps"].values() for run in one["seconds"] for took in run)


def test_what_was_kept_is_of_the_present_chunks():
    assert f"random:{FOUND['model']}" == script.MODEL and FOUND["phase"] == script.PHASE
    wanted = script.ways(Sizes.of(SHAPES[FOUND["model"]]), script.PROMPT, script.COUNT)
    assert {way: list(map(tuple, one["chunks"])) for way, one in FOUND["steps"].items()} == wanted


# -- what the page says ------------------------------------------------------------------------------------------------


def test_equal_chunks_take_ever_longer_and_chunks_of_equal_cost_less_so():
    begin, slope = line(EQUAL)
    assert all(took == pytest.approx(begin + slope * start, rel=0.2) for start, _, took in EQUAL)
    assert begin / slope < even(Sizes.of(SHAPES[FOUND["model"]])), "the even position comes sooner than FLOPs say"
    lengths, costs = (max(times) / min(times) for times in ([took for *_, took in one[:-1]] for one in (EQUAL, CUT)))
    assert 1.2 * costs < lengths
    assert (
        f"takes {costs:.1f} times as long as their shortest; with equal lengths it takes {lengths:.1f} times" in WORDS
    )
    assert all(before[1] > after[1] for before, after in pairwise(CUT))


def test_the_answers_are_what_the_recording_shows():
    part = PAGE.partition("### Ask the recording")[2].partition("</details>")[0]
    begin, slope = line(EQUAL)
    start, rest, took = CUT[-1]
    wanted = [str(CUT[0][1]), str(CUT[-2][1]), f"{took:.1f}"]
    assert re.findall(r"\*\*([\d.]+)\*\*", part) == wanted
    assert f"the rest of the prompt, {rest} tokens" in " ".join(part.split())
    assert f"{rest} tokens there take {(begin + slope * start) * rest / EQUAL[0][1]:.2f} s" in " ".join(part.split())


def test_half_of_a_heads_numbers_cost_more_than_half():
    found = json.loads((ROOT / "benchmarks/kernels/paged_attention.json").read_text(encoding="utf-8"))["rows"]
    half, whole = (
        next(row for row in found if (row["shape"], row["step"]) == (shape, "prefill 8192"))
        for shape in ("llama-3.2-1b", "llama-3.1-8b")
    )
    sizes = [SHAPES[row["shape"]] for row in (half, whole)]
    assert [(one.num_heads, one.num_kv_heads, one.head_dim) for one in sizes] == [(32, 8, 64), (32, 8, 128)]
    assert f"takes {half['us'] / 1e3:.2f} ms per layer and {whole['us'] / 1e3:.2f} ms for a prompt of 8,192" in WORDS
    ratio = half["us"] / whole["us"]
    assert f"{ratio:.0%}".replace("%", " %") + " of the time with heads of half the size" in WORDS
    assert 0.5 < ratio < per_score(64).in_turn / per_score(128).in_turn
    rates = [row["tflop_s"] for row in (half, whole)]
    assert f"at {rates[0]:.0f} and {rates[1]:.0f} TFLOP/s. A large product reaches 775" in WORDS
    shares = [rate / 775 for rate in rates]
    assert f"so that is {shares[0]:.0%} and {shares[1]:.0%}".replace("%", " %") in WORDS
    for head, share in zip((64, 128), shares, strict=True):
        assert reached(head, overlapped=False) < share < reached(head, overlapped=True)


def test_hopper_s_kernel_is_between_its_bounds():
    product = json.loads((ROOT / "benchmarks/answered/prefill_hopper.json").read_text(encoding="utf-8"))
    assert product["rates"]["bfloat16_tflop_s"] == 775
    race = json.loads((ROOT / "benchmarks/answered/prompt_attention.json").read_text(encoding="utf-8"))
    chunks = [row for row in race["rows"] if row["step"].startswith("8192 at") and not row["window"]]
    rates = {
        head: sorted(
            round(row["tflops"]) for row in chunks if row["head_dim"] == head and row["kernel"] == "hopper_attention"
        )
        for head in (64, 128)
    }
    assert rates == {64: [474, 490], 128: [607, 656]}
    assert "it reaches 474 to 490 TFLOP/s with heads of 64, and 607 to 656 with 128: 61 % to 63 % and 78 % to" in WORDS
    shares = {head: [rate / 775 for rate in found] for head, found in rates.items()}
    assert [f"{share:.0%}" for found in shares.values() for share in found] == ["61%", "63%", "78%", "85%"]
    for head, found in shares.items():
        assert found[-1] < reached(head, overlapped=True)
    assert "The kernels above reach 54 % to 85 % of a large product's rate" in WORDS


def test_the_predictions_are_answered_by_the_formulas():
    small, large = (Sizes.of(SHAPES[name]) for name in ("llama-3.2-1b", "llama-3.1-8b"))
    assert even(large) == 26_624 and 2 * even(small) == 29_696
    limit = flops(small, 0, 8192)
    counts = most_tokens(small, 100_000, limit), len(cut(small, 0, 120_000, limit)), -(-120_000 // 8192)
    assert (
        "{:,}. A prompt of 120,000 takes {} chunks that cost no more than the first, or {} of".format(*counts) in WORDS
    )
    tokens = 2 * sum(SHAPES["llama-3.2-1b"].layer(layer).kv_width for layer in range(16)) * 2
    assert tokens == 32_768 and round(120_000 * tokens / 1e9, 1) == 3.9
    assert round((2.47e9 + 120_000 * tokens) / 4.3e12 * 1e3, 1) == 1.5
    assert (
        round(flops(small, 120_000, 1) / 1e9, 1) == 17.7 and round(flops(small, 120_000, 1) / 600e12 * 1e3, 2) == 0.03
    )
    assert flops(small, 0, 128_000) / flops(small, 0, 32_000) == pytest.approx(10, rel=0.05)


def test_two_rates_give_measured_prompts_back():
    """The claim that two rates explain whole prompts: within 5 %."""
    if not FOUND.get("prompts"):
        pytest.skip("no GPU's prompts are recorded")
    _, (_, rows), _, (_, rates) = prompt_tables(FOUND, "")
    cells = [re.fullmatch(r"([\d,.]+) \(([\d,.]+)\)", cell) for row in rows for cell in row[1:]]
    pairs = [[float(number.replace(",", "")) for number in cell.groups()] for cell in cells]
    assert all(given == pytest.approx(back, rel=0.05) for given, back in pairs)
    assert len(rates) == len(rows) == len(FOUND["prompts"])
