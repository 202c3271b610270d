"""Gradus on a Mac, imitated by taking away /proc, Linux' own calls and Triton: see tests/like_a_mac."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gradus import phases
from gradus.exercises.declaration import exercises_of

ROOT = Path(__file__).parents[2]
PIPES = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
MAC = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "like_a_mac", ROOT / "src", ROOT)))}
TINY = ["--model", "random:tiny-llama", "--dtype", "float32"]

COMMANDS = {
    "doctor": ["doctor", "--json"],
    "generate": ["generate", "Hello", *TINY, "--max-tokens", "4", "--json"],
    "a dry run": ["serve", *TINY, "--dry-run", "--json"],
    "p09 generates": ["generate", "Hello", *TINY, "--max-tokens", "4", "--phase", "p09"],
    "cuda": ["generate", "Hello", *TINY, "--device", "cuda"],
    "mps": ["generate", "Hello", *TINY, "--device", "mps"],
    "p09 on cuda": ["bench", "p09", "--quick", *TINY, "--device", "cuda"],
    "p09's demo": ["demo", "p09"],
}

SCRIPT = f"""
import io, json, multiprocessing, os, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec

found = {{
    "there": [name for name in ("/proc/self/stat", "/sys/fs/cgroup", "/dev/null") if os.path.exists(name)],
    "affinity": hasattr(os, "sched_getaffinity"),
    "triton": find_spec("triton") is not None,
    "start": multiprocessing.get_start_method(),
}}
from gradus import LLM, SamplingParams, phases
from gradus.cli import main
from gradus.exercises.declaration import exercises_of

found["need triton"] = []
for phase in phases.engines():
    phases.load(phase.name)
    for exercise in exercises_of(phase):
        try:
            import_module(exercise.module)
        except ModuleNotFoundError:
            found["need triton"].append(exercise.file)
asked = ["Hello", "The sea"], SamplingParams(max_tokens=12, ignore_eos=True)
for phase in (None, "p00"):
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", phase=phase, gc_freeze=False)
    found[f"tokens of {{phase}}"] = [completion.token_ids for completion in llm.generate(*asked)]
    if phase is None:
        found["kernels"] = getattr(llm.engine.runner.step.passes, "decode", None) is not None
for name, arguments in {COMMANDS!r}.items():
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    found[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """Observations of one process, and each command's exit code, output and messages."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=MAC, timeout=150, **PIPES)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_what_a_mac_lacks_is_not_there(found):
    assert found["there"] == ["/dev/null"]
    assert (found["affinity"], found["triton"], found["start"]) == (False, False, "spawn")


@pytest.mark.slow
def test_exercises_that_need_triton_say_so(found):
    """Or the tests that judge them would be skipped, and any file would pass."""
    declared = [one for phase in phases.available() for one in exercises_of(phase) if one.triton]
    assert found["need triton"] == [one.file for one in declared]


@pytest.mark.slow
def test_the_kernels_decode_the_baselines_tokens(found):
    pytest.importorskip("numba")
    assert found["kernels"]
    assert found["tokens of None"] == found["tokens of p00"]


@pytest.mark.slow
def test_the_doctor_finds_what_is_essential_and_how_much_memory_is_free(found):
    code, out, _ = found["doctor"]
    report = json.loads(out)
    assert code == 0 and report["healthy"]
    assert "free for this process" in report["hardware"]["memory"] and int(report["hardware"]["cores"]) >= 1
    assert {each["name"]: each["status"] for each in report["findings"]}["triton"] == "note"


@pytest.mark.slow
def test_text_is_generated_and_memory_is_planned(found):
    code, out, _ = found["generate"]
    assert code == 0 and len(json.loads(out)["completions"][0]["token_ids"]) == 4
    code, out, _ = found["a dry run"]
    assert code == 0 and json.loads(out)["memory"]["free_bytes"] > 0


@pytest.mark.slow
def test_a_phase_of_triton_kernels_runs_without_them_and_says_so(found):
    code, _, err = found["p09 generates"]
    assert code == 0 and "p09 runs without its kernel" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cuda", "no CUDA GPU is usable here"),
        ("mps", "device must be auto, cpu, cuda or cuda:N, got 'mps'"),
        ("p09 on cuda", "no CUDA GPU is usable here"),
        ("p09's demo", "the kernels need Triton"),
    ],
)
def test_what_needs_another_machine_is_refused_in_one_line(found, name, said):
    code, _, err = found[name]
    assert code == 2 and said in err and err.startswith("gradus: ") and err.count("\n") == 1


@pytest.mark.slow
def test_a_server_answers_and_stops_when_it_is_asked_to():
    command = [sys.executable, "-m", "gradus", "serve", *TINY, "--port", "0"]
    with subprocess.Popen(command, env=MAC, **PIPES) as child:
        try:
            address = next(word for word in child.stdout.readline().split() if word.startswith("http://"))
            body = json.dumps({"prompt": "Hello", "max_tokens": 3}).encode()
            request = urllib.request.Request(f"{address}/generate", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] <= 3
            child.terminate()
            _, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 0 and "Traceback" not in err
