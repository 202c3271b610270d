"""The race of two checkouts: what it asks of each, and how it reads their answers. No model runs here."""

import pytest

from benchmarks import old_and_new


@pytest.mark.parametrize("model", old_and_new.WORKLOADS)
def test_both_checkouts_are_asked_the_same(model):
    asked = old_and_new.described(model, "cpu", 3)
    assert asked == old_and_new.described(model, "cpu", 3)
    for case in asked["cases"]:
        jobs = old_and_new.WORKLOADS[model][case["label"]].jobs
        assert [len(prompt) for prompt in case["prompts"]] == [job.prompt for job in jobs]
        assert case["max_tokens"] == [job.output for job in jobs]


def test_a_row_compares_medians_and_the_fastest_runs():
    blocks = [("new", [1.0, 1.2]), ("old", [2.0, 3.0, 4.0]), ("new", [1.1])]
    found = old_and_new.row("qwen3-0.6b", "batch 1", blocks)
    assert found["new_tok_s"] == pytest.approx(512 / 1.1, abs=0.1)
    assert found["old_tok_s"] == pytest.approx(512 / 3, abs=0.1)
    assert (found["new_over_old"], found["fastest_over_fastest"]) == (round(3 / 1.1, 4), 2.0)


def test_a_block_that_failed_leaves_no_ratio():
    found = old_and_new.row("gpt2-124m", "batch 64", [("new", [1.0])])
    assert "new_over_old" not in found and "old_tok_s" not in found
