"""The race of families' shapes against the memory's floor: what it asks, how it reads answers, and what a page says."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import families

ROOT = Path(__file__).parents[2]


def test_every_shape_is_asked_for_the_same_jobs():
    options = Namespace(device="cpu", dtype="float32", repeats=2, beside=False, quantize=None)
    asked = families.described("tiny-smollm3", options)
    assert asked["context"] == 512 and asked["repeats"] == 2
    lengths = {case["label"]: [len(prompt) for prompt in case["prompts"]] for case in asked["cases"]}
    assert lengths == {"batch 1": [32], "batch 32": [128] * 32}


def test_a_row_has_the_share_of_the_floor():
    case = {"samples": [{"seconds": 2.0}, {"seconds": 1.0}, {"seconds": 1.6}], "prediction": {"seconds": 0.8}}
    work = families.WORKLOADS["batch 1"]
    made = families.row(work, "batch 1", case)
    assert made["tok_s"] == [192.0, 384.0, 240.0] and made["of_floor"] == 0.5
    assert "of_floor" not in families.row(work, "batch 1", case | {"prediction": None})


def test_a_shape_that_failed_has_its_reason():
    work = families.WORKLOADS["batch 1"]
    assert families.row(work, "batch 1", {"samples": [], "failed": "no memory"})["failed"] == "no memory"


def test_a_shape_of_the_comparison_with_vllm_is_asked_for_its_workloads():
    options = Namespace(device="cuda", dtype="bfloat16", repeats=2, beside=True, quantize="int4")
    asked = families.described("qwen3-30b-a3b", options)
    assert asked["max_sequences"] == 128 and asked["quantize"] == "int4" and asked["context"] >= 3501
    assert [case["sampling"]["temperature"] for case in asked["cases"]] == [0.0, 0.6, 0.6, 0.6, 0.6]
    prompts = families.workloads("qwen3-30b-a3b", True)["prefill"]
    assert families.row(prompts, "prefill", {"samples": [{"seconds": 0.5}]})["tok_s"] == [56000.0]


def test_the_page_says_what_was_measured():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks" / "families.json").read_text())["rows"]
    by_model: dict[str, list[str]] = {}
    for row in rows:
        tok_s = sorted(row["tok_s"])[len(row["tok_s"]) // 2]
        by_model.setdefault(row["model"], []).append(f"{tok_s:,.0f} tok/s, {100 * row['of_floor']:.0f} %")
    for model, cells in by_model.items():
        assert f"| random:{model} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize("name", families.WORKLOADS)
def test_a_workload_fits_the_context(name):
    assert all(job.prompt + job.output <= 512 for job in families.WORKLOADS[name].jobs)
