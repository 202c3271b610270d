"""The race of two checkouts: what it asks of each, and how it reads their answers."""

import argparse
import json

import pytest

from benchmarks import old_and_new
from gradus.bench.studies import beside
from gradus.errors import ConfigError


def asked(**others) -> argparse.Namespace:
    given = {"cases": ["short"], "models": ["qwen3-0.6b"], "only": (), "device": "cpu", "repeats": 3, "quick": False}
    return argparse.Namespace(**given | others)


def sample(seconds: float, **others) -> dict:
    return {"seconds": seconds, "output_tokens": 512, **others}


@pytest.mark.parametrize("model", old_and_new.WORKLOADS)
def test_both_checkouts_are_asked_the_same(model):
    question = old_and_new.short(model, asked())
    assert question == old_and_new.short(model, asked())
    for case in question.asked["cases"]:
        jobs = old_and_new.WORKLOADS[model][case["label"]].jobs
        assert [len(prompt) for prompt in case["prompts"]] == [job.prompt for job in jobs]
        assert case["max_tokens"] == [job.output for job in jobs]
        assert question.metrics[case["label"]] == beside.OUT


def test_long_contexts_are_asked_for_as_beside_vllm():
    question = old_and_new.long("llama-3.2-1b", asked(only=["8 agents", "hit of 120,000"]))
    assert question.metrics == {"8 agents": beside.SECONDS, "hit of 120,000": beside.ANSWER}
    hit, agents = question.asked["cases"]
    assert (hit["label"], hit["keep_prefixes"], hit["new_prompts"]) == ("hit of 120,000", True, False)
    assert [len(agents["prompts"]), agents["follows"][8]] == [80, 0]
    assert question.asked["contender"] == "final" and question.asked["cache_tokens"] == beside.POOL_TOKENS


def test_rows_that_no_model_has_are_refused():
    assert len(old_and_new.questions(asked(cases=["short", "long"], models=["llama-3.2-1b", "gpt2-124m"]))) == 3
    with pytest.raises(ConfigError, match="gpt2-124m: there are no long rows called 8 agents"):
        old_and_new.questions(asked(cases=["long"], models=["gpt2-124m"], only=["8 agents"]))


def test_a_row_compares_medians_and_the_fastest_runs():
    blocks = [
        ("new", [sample(1.0), sample(1.2)]),
        ("old", [sample(2.0), sample(3.0), sample(4.0)]),
        ("new", [sample(1.1)]),
    ]
    found = old_and_new.row("qwen3-0.6b", "batch 1", beside.OUT, blocks)
    assert found["new_tok_s"] == pytest.approx(512 / 1.1, abs=0.1)
    assert found["old_tok_s"] == pytest.approx(512 / 3, abs=0.1)
    assert (found["new_over_old"], found["fastest_over_fastest"]) == (round(3 / 1.1, 4), 2.0)


def test_of_a_time_less_is_better():
    found = old_and_new.row(
        "llama-3.2-1b", "8 agents", beside.SECONDS, [("new", [sample(4.0)]), ("old", [sample(5.0)])]
    )
    assert (found["new_seconds"], found["old_seconds"], found["new_over_old"]) == (4.0, 5.0, 1.25)


def test_a_block_that_failed_leaves_no_ratio():
    found = old_and_new.row("gpt2-124m", "batch 64", beside.OUT, [("new", [sample(1.0)]), ("old", [])])
    assert "new_over_old" not in found and "old_tok_s" not in found


def raced(monkeypatch, tmp_path, *blocks) -> tuple[int, dict]:
    """Run main over blocks that have ended: (name, what was found, why it is incomplete)."""
    here, out = str(old_and_new.Path(old_and_new.__file__).parents[1]), tmp_path / "found.json"
    monkeypatch.setattr(old_and_new, "in_turns", lambda sides, asked, log: iter(blocks))
    arguments = ["--old", here, "--quick", "--device", "cpu", "--only", "batch 64", "--out", str(out)]
    return old_and_new.main(arguments), json.loads(out.read_text())


def test_a_block_that_did_not_end_well_fails_the_race_though_the_others_were_fast(monkeypatch, tmp_path):
    good = {"cases": {"batch 64": {"samples": [sample(1.0)]}}}
    bad = {"cases": {"batch 64": {"samples": [], "failed": "no memory"}}}
    ended = [("0-new", good, None), ("1-old", good, None), ("2-new", good, None)]
    assert raced(monkeypatch, tmp_path, *ended)[0] == 0
    for last, reason in (({}, "not done after 200 s"), (bad, None)):
        code, found = raced(monkeypatch, tmp_path, *ended[:2], ("2-new", last, reason))
        assert code == 1 and found["rows"][0]["new_over_old"] == 1.0
        assert found["failed"] == [f"tiny-llama, 2-new: {reason or 'batch 64: no memory'}"]


def test_a_checkout_that_is_not_there_is_refused_instead_of_racing_this_one_with_itself(tmp_path):
    with pytest.raises(ConfigError, match=f"^{tmp_path}/src: has no package gradus"):
        old_and_new.main(["--old", str(tmp_path), "--quick", "--out", str(tmp_path / "found.json")])


def test_repeats_count_for_long_contexts_too():
    assert old_and_new.long("llama-3.2-1b", asked(repeats=7)).asked["repeats"] == 7


@pytest.mark.stress
def test_a_rehearsal_races_this_checkout_with_itself(tmp_path):
    here, out = str(old_and_new.Path(old_and_new.__file__).parents[1]), tmp_path / "found.json"
    arguments = ["--old", here, "--quick", "--device", "cpu", "--must", "0", "--repeats", "1", "--blocks", "new", "old"]
    wanted = ["batch 64", "32,000", "hit of 120,000", "8 agents"]
    options = ["--cases", "short", "long", "--only", *wanted, "--out", str(out)]
    assert old_and_new.main(arguments + options) == 0
    found = json.loads(out.read_text())["rows"]
    assert {row["workload"] for row in found} == {*wanted} and all(row["new_over_old"] > 0 for row in found)
