"""Figures that pages quote by hand are those of the results files that they name."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def found(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def page(name: str) -> str:
    """A page in one line."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_first_tokens_by_where_a_session_comes_from():
    first = next(row["first_token"] for row in found("host_tier.json")["rows"] if "first_token" in row)
    names = {
        "computed": "computed",
        "gpu": "found on the GPU",
        "host": "found in host memory",
        "disk": "found in files, in the system's page cache",
    }
    for source, name in names.items():
        took, share = (first[each][source] for each in ("ttft_ms", "of_computed"))
        assert took == round(median(first["samples_ms"][source]), 2)
        shown = f"{took:.1f}" if took < 10 else f"{took:.0f}"
        assert f"| {name} | {shown} | {f'{share:.2f}' if share < 1 else 1} |" in page("design/p05.md")


def test_what_the_host_tier_costs_a_load_that_never_hits():
    cost = next(row["throughput"] for row in found("host_tier.json")["rows"] if "throughput" in row)
    rates = {name: median(samples) for name, samples in cost["samples"].items()}
    assert cost["on_over_off"] == pytest.approx(rates["on"] / rates["off"], abs=1e-3)
    assert f"{rates['off']:,.0f}"[:3] == "205" and "205,000 tokens per second" in page("design/p05.md")
    assert f"throughput is {cost['on_over_off']:.3f} times" in page("design/p05.md")


def test_what_a_long_prompt_cost_conversations_on_a_gpu():
    for row in found("answered/long_beside_short_h200.json")["rows"]:
        by_gpu = row["steps_timed_by"] == "the GPU's clock"
        name = "the same, steps timed by the GPU" if by_gpu else f"{row['shape']}, {row['way']}"
        before, beside, times = row["before"], row["beside"], row["tpot_ratio"]
        mean = before["output_tok_s"] / beside["output_tok_s"]
        digits = 0 if mean > 10 else 2
        ratios = ", ".join(f"{ratio:.{digits}f} ×" for ratio in (times["p50"], times["p99"], mean))
        assert (
            f"| {name} | {before['tpot_ms']['p50']:.2f} ms | {ratios} | {beside['gap_ms']['p99']:.0f} ms | "
            f"{row['long_ttft_s'] + 1e-9:.1f}, {row['long_alone_s']:.1f} s |"
        ) in page("design/p06.md")


def test_what_longer_steps_gain_a_prompt_alone():
    rates = {
        (row["token_budget"], row["prompt"]): round(row["tok_s"], -2)
        for row in found("answered/step_lengths.json")["rows"]
        if row["model"] == "random:llama-3.2-1b"
    }
    longer, shorter = 16_384, 8_192
    assert (
        f"32,000 tokens at {rates[longer, 32_000]:,} tokens/s in steps of {longer:,} and at "
        f"{rates[shorter, 32_000]:,} in steps of {shorter:,}, one of 120,000 at "
    ) in page("design/p06.md")
    assert [round(rates[budget, 120_000], -2) for budget in (longer, shorter)] == [53_000, 51_800]
    assert "one of 120,000 at 53,000 and 51,800" in page("design/p06.md")


STEPS = ("8 x 8192", "1 x 8192", "4 x 2048", "1 x 2048", "16 x 512", "8192 at 24576", "8192 at 114688", "1536 at 98464")
KERNELS = {"paged_attention": "the kernel of every GPU", "hopper_attention": "`hopper_attention`"}


def test_how_fast_each_kernel_reads_long_prompts():
    rows = found("answered/prompt_attention.json")["rows"]
    rates = {(row["head_dim"], row["kernel"], row["step"], row["window"]): row["tflops"] for row in rows}
    text = page("design/p09.md").replace("**", "")
    for width in (64, 128, 256):
        for kernel, name in KERNELS.items():
            cells = " | ".join(f"{rates[width, kernel, step, None]:.0f}" for step in STEPS)
            assert f"| {width}, {name} | {cells} |" in text
    gains = {
        width: [
            rates[width, "hopper_attention", step, 4096] / rates[width, "paged_attention", step, 4096]
            for step in STEPS
            if "8192" in step
        ]
        for width in (64, 128, 256)
    }
    most, least = max(gains[64] + gains[128]), min(gains[64] + gains[128])
    assert f"{least:.1f} to {most:.2g} times as fast from 8,192 tokens on with 64 and 128 dimensions" in text
    assert f"{min(gains[256]):.1f} to {max(gains[256]):.1f} times with 256" in text


def test_what_products_in_float16_gain_decodes_in_8_bits():
    shipped = "128 keys, 4 warps, 2 stages, live 4, halves, ahead"
    by_step: dict[str, list[str]] = {}
    for row in found("answered/fp8_decode.json")["rows"]:
        now = next(launch for launch in row["launches"] if launch["name"] == shipped)
        cells = [f"{row['baseline_us']:.0f} µs", f"{now['us']:.0f} µs, {now['gb_s'] / 1000:.2f} TB/s"]
        by_step.setdefault(row["step"].removeprefix("decode "), []).extend(cells)
    for step, cells in by_step.items():
        rows, _, keys = step.partition(" x ")
        assert f"| {rows} x {int(keys):,} | {' | '.join(cells)} |" in page("design/quantization.md")
