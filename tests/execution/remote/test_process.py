"""`gradus deploy runner` as a program: it outlives its engines, and an engine reports in one line that it is gone."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradus import LLM, SamplingParams
from gradus.config.settings import THE_ENGINES, THE_RUNNERS, Settings
from gradus.deploy.runner import check
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.remote.runner import RunnerLost

TINY = ["--model", "random:tiny-llama", "--dtype", "float32", "--device", "cpu"]
PROMPT, PARAMS = [5, 6, 7, 8], SamplingParams(max_tokens=16, temperature=0.8, seed=3)
AS_JSON = SamplingParams(max_tokens=40, structured={"regex": "[a-f]{2,9}, [0-9]{3}"})


@pytest.fixture(scope="module")
def wanted():
    with LLM("random:tiny-llama", device="cpu", dtype="float32") as llm:
        return [each.token_ids for each in llm.generate(PROMPT, [PARAMS]) + llm.generate(PROMPT, [AS_JSON])]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "gradus", "deploy", "runner", "--socket", str(path), *TINY, "--max-sequences", "4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        yield process, path
        process.kill()


def engine(path: Path, **settings) -> LLM:
    return LLM("random:tiny-llama", runner=f"unix:{path}", **settings)


def test_it_serves_one_engine_after_another_and_ends_at_sigterm(program, wanted):
    process, path = program
    for _ in range(2):
        with engine(path) as llm:
            found = llm.generate(PROMPT, [PARAMS]) + llm.generate(PROMPT, [AS_JSON])
            assert [each.token_ids for each in found] == wanted
            assert llm.settings["max_sequences"] == 4 and llm.dtype == "float32" and llm.weight_bytes > 0
    with pytest.raises(ConfigError, match="max_sequences must be at most the runner's 4, got 5"):
        engine(path, max_sequences=5)
    with pytest.raises(
        ConfigError, match="has random:tiny-llama, with a vocabulary of 320 tokens and 1 groups of layers"
    ):
        LLM("random:tiny-gemma3", runner=f"unix:{path}")
    process.terminate()
    assert process.wait(20) == 0 and not path.exists()
    said = process.stderr.read()
    assert f"a runner of random:tiny-llama waits for an engine at {path}" in said.replace("\n", "")
    assert "Traceback" not in said


def test_an_engine_whose_runner_dies_fails_in_one_line(program):
    process, path = program
    with engine(path) as llm:
        answer = llm.stream(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True))
        next(answer)
        process.kill()
        with pytest.raises(RunnerLost, match=r"the runner at unix:.* is gone"):
            list(answer)


# -- settings ----------------------------------------------------------------------------------------------------------

GIVEN = {
    "device": "cpu", "dtype": "float32", "quantize": "int8", "page_size": 8, "cache_tokens": 99, "kv_dtype": "fp8",
    "activations": "int8", "memory_fraction": 0.3, "speculate": "ngram", "draft_quantize": "int8", "drafts": 2,
    "tensor_parallel": 2, "pipeline_parallel": 2, "threads": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", THE_RUNNERS)
def test_an_engine_refuses_the_settings_of_its_runner(name):
    with pytest.raises(ConfigError, match=f"{name} does nothing with a runner in another process"):
        Settings(runner="unix:/x", **{name: GIVEN[name]}).options(ModelLimits(320, 64), "cpu")


@pytest.mark.parametrize("switch", ["chunked", "kernels", "graphs"])
def test_an_engine_refuses_the_switches_of_its_runner(switch):
    with pytest.raises(ConfigError, match=f"switch_off {switch} does nothing with a runner in another process"):
        Settings(runner="unix:/x", switch_off=(switch,)).options(ModelLimits(320, 64), "cpu")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"policy": "priority"}, "policy does nothing in a runner: give it to the engine, or leave it out"),
        ({"step_target": 0.1}, "step_target does nothing in a runner"),
        ({"slowdown": 1.5}, "slowdown does nothing in a runner"),
        ({"phase": "p05"}, "phase does nothing in a runner"),
        ({"runner": "unix:/x"}, "runner does nothing in a runner"),
        ({"switch_off": ("overlap",)}, "switch_off overlap does nothing in a runner"),
        ({"tensor_parallel": 2}, "tensor_parallel and pipeline_parallel do not work in a runner yet"),
        ({"speculate": "draft:random:tiny-llama"}, "draft models and heads do not work in a runner yet"),
    ],
)  # fmt: skip
def test_a_runner_refuses_what_it_would_ignore(settings, line):
    with pytest.raises(ConfigError, match=line):
        check(Settings(**settings))


def test_every_setting_of_the_engine_is_asked_for():
    assert {"policy", "step_target", "slowdown", "phase", "impl", "runner"} == {*THE_ENGINES} and set(GIVEN) == {
        *THE_RUNNERS
    }


def test_prefixes_on_disk_are_refused_on_both_sides():
    with pytest.raises(ConfigError, match="prefix_dir does not work with a runner in another process yet"):
        Settings(runner="unix:/x", prefix_dir="x").options(ModelLimits(320, 64), "cpu")
    with pytest.raises(ConfigError, match="prefix_dir does not work in a runner yet: leave it out"):
        check(Settings(prefix_dir="x"))
