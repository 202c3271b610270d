"""Stages of a pass are timed, and their rates are those of their matrices."""

import pytest

pytest.importorskip("numba")

from benchmarks import cpu_stages
from gradus.text.llm import LLM


def test_each_stage_is_timed():
    llm = LLM("random:tiny-gemma3", device="cpu", dtype="float32", context_length=256)
    times = cpu_stages.stage_times(llm.engine.runner.step.passes.decode, 32, 100, rounds=2)
    assert times["pass_ms"] > 0
    assert set(times["ms"]) == set(cpu_stages.STAGES.values()) and all(each > 0 for each in times["ms"].values())


def test_rates_are_those_of_the_matrices():
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32")
    config, decode = llm.config, llm.engine.runner.step.passes.decode
    rates = cpu_stages.rates(config, 32, 100, dict.fromkeys(cpu_stages.STAGES.values(), 1.0))
    stages = decode.step.stages[: decode.count - 1]
    for kind, name in cpu_stages.STAGES.items():
        if name == "attend":
            continue
        matrices = decode.step.matrices[stages["matrix"][stages["kind"] == kind]]
        macs = 32 * int((matrices["rows"] * matrices["width"]).sum())
        assert rates[name] == pytest.approx(macs / 1e6, rel=0.01), name
    seen = sum(100 + row for row in range(1, 33))  # keys, by all rows together
    macs = 2 * config.num_layers * config.num_heads * config.head_dim * seen
    assert rates["attend"] == pytest.approx(macs / 1e6, rel=0.01)
