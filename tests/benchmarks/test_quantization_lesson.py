"""p07's pages show what formats and caches were measured to lose, and what they say of it is so."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.lessons import quantization_lesson as script
from phases.p07_quantization.formats import nvfp4
from tests.phases.conftest import tiny_model

FOLDER = Path(script.__file__).parent
FOUND = json.loads((FOLDER / "quantization_lesson.json").read_text(encoding="utf-8"))
LESSON = FOLDER.parents[1] / "phases/p07_quantization"
TOKENS = [7 * i % 320 for i in range(70)]


def losses(part: str, model: str = "smollm2-135m") -> dict[str, float]:
    return {row["way"]: row["divergence"] for row in FOUND[model][part]}


@pytest.mark.parametrize(("page", "part"), [("formats.md", "formats"), ("kv.md", "caches")])
def test_a_page_shows_the_table_that_was_measured(page, part):
    assert script.table(FOUND, part) in (LESSON / page).read_text(encoding="utf-8")


def test_the_page_says_how_uneven_channels_are():
    assert script.sentence(FOUND) in " ".join((LESSON / "kv.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("model", FOUND)
def test_keys_are_harder_than_values_and_a_grid_per_channel_is_the_remedy(model):
    found, uneven = losses("caches", model), FOUND[model]["unevenness"]
    assert uneven["keys"] > 2 * uneven["values"]
    assert found["keys in int4"] > 2 * found["values in int4"]
    assert found["keys in int4, a grid per channel"] < found["keys in int4"] / 2
    assert found["both in int8"] < found["keys in int4, a grid per channel"]


def test_a_bit_of_mantissa_and_a_smaller_block_lose_less():
    found = losses("formats")
    assert found["E4M3, a scale per row"] < found["E5M2, a scale per row"]
    assert found["NVFP4"] < found["MXFP4"] and found["E4M3, a scale per row"] < found["NVFP4"]


@torch.inference_mode()
def test_the_parts_run_on_a_model_and_what_is_not_rounded_loses_nothing(monkeypatch):
    model = tiny_model("tiny-llama")
    monkeypatch.setattr(script, "FORMATS", {"NVFP4": (4.5, lambda x, w, bits: nvfp4(w))})
    for rows in (script.formats(model, TOKENS, TOKENS), script.caches(model, TOKENS)):
        assert rows[0]["divergence"] < 1e-6 and rows[0]["same"] == 1.0
        assert all(row["divergence"] > 1e-6 for row in rows[1:])
    uneven = script.unevenness(model, TOKENS)
    assert uneven["most keys"] >= uneven["keys"] >= 1
