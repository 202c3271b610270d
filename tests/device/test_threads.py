"""The number of compute threads: as requested, or else what the machine, the container and the program leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.device import control_groups, threads
from tests.device.test_control_groups import groups
from tests.fresh import Parent

ROOT = Path(__file__).parents[2]


@pytest.fixture
def torchs_number():
    """It may be changed, and is as before afterwards."""
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize(("limit", "cores"), [("250000", 2), ("90000", 1), ("max", 8), ("9900000", 8)])
def test_usable_cores_are_whole_and_at_least_one(tmp_path, monkeypatch, limit, cores):
    found = groups(tmp_path, "0::/\n", root=f"{limit} 100000\n")
    monkeypatch.setattr(control_groups, "GROUPS", found[0])
    monkeypatch.setattr(control_groups, "OWN", found[1])
    monkeypatch.setattr(threads, "allowed_cores", lambda: 8)
    assert threads.usable_cores() == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process to some cores")
def test_cores_that_the_process_may_not_run_on_do_not_count():
    code = "import os; from gradus.device.threads import *; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    done = subprocess.run([sys.executable, "-c", f"{code}; print(usable_cores())"], capture_output=True, cwd=ROOT)
    assert done.stdout == b"1\n"


def test_the_command_line_tells_torch_of_the_share_unless_it_has_been_told(monkeypatch):
    monkeypatch.setattr(threads.sys, "modules", {})
    monkeypatch.setattr(threads, "allowed_cores", lambda: 8)
    for cores, given, expected in [
        (2, {}, {"OMP_NUM_THREADS": "2"}),
        (8, {}, {}),  # torch counts as many by itself
        (2, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4"}),
        (2, {"MKL_NUM_THREADS": "4"}, {"MKL_NUM_THREADS": "4"}),
    ]:
        monkeypatch.setattr(threads, "usable_cores", lambda cores=cores: cores)
        threads.stay_within_share(given)
        assert given == expected
    monkeypatch.setattr(threads.sys, "modules", {"torch": None})
    given = {}
    threads.stay_within_share(given)
    assert given == {}


def test_left_out_it_is_what_machine_and_program_allow_and_torch_keeps_its_own(monkeypatch, torchs_number):
    for cores, torchs, expected in [(4, 2, 2), (2, 4, 2), (3, 3, 3)]:
        torch.set_num_threads(torchs)
        monkeypatch.setattr(threads, "usable_cores", lambda cores=cores: cores)
        assert threads.use(None) == expected and torch.get_num_threads() == torchs


@pytest.mark.parametrize("phase", [None, "p01"])
def test_a_number_is_torchs_too_and_the_statistics_show_it(torchs_number, phase):
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", threads=3, phase=phase)
    assert torch.get_num_threads() == 3 == llm.settings["threads"]
    assert len(llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_the_kernels_have_that_many_though_the_machine_has_fewer(torchs_number):
    pytest.importorskip("numba")
    more = threads.allowed_cores() + 1
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", threads=more)
    assert llm.engine.runner.step.passes.decode.threads == more


# -- threads that spin -------------------------------------------------------------------------------------------------

IMPORTS = """
import os, sys, time
import torch
from gradus.device import threads
"""

TASKS = '''
def tasks():
    return len(os.listdir("/proc/self/task"))

def settled(expected):
    """The number of threads, once it is as expected: one that has been ended is listed until it has left."""
    deadline = time.monotonic() + 10
    while tasks() != expected and time.monotonic() < deadline:
        time.sleep(0.001)
    return tasks()

def compute():
    torch.ones(1 << 22).exp()

torch.set_num_threads(3)
before = tasks()
'''


@pytest.fixture(scope="module")
def told():
    """Return the output of a fresh process with no other OpenMP variables in its environment."""
    kept = {name: value for name, value in os.environ.items() if name not in (*threads.CHOICES, *threads.COUNTS)}
    parent = Parent(IMPORTS, kept)

    def output(script: str, **environment: str) -> list[str]:
        done = parent.run(TASKS + script, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    yield output
    parent.close()


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")


@linux
@pytest.mark.parametrize(("choice", "left"), [({}, "0"), ({"OMP_WAIT_POLICY": "passive"}, "2")])
def test_threads_that_spin_are_ended_and_others_are_not(told, choice, left):
    script = """
for _ in range(3):  # torch has them again when it wants them
    compute()
    print(tasks() - before)
    threads.end_spinning()
    print(settled(before + LEFT) - before, torch.get_num_threads())
"""
    script = script.replace("LEFT", left)
    assert told(script, **choice) == ["2", left, "3"] * 3


@linux
def test_the_callers_own_threads_are_no_other_threads(told):
    """A thread that meets torch for the first time meanwhile has the process's number, and so has the caller after."""
    script = """
import threading
from concurrent.futures import ThreadPoolExecutor

torch.set_num_threads(3)
with ThreadPoolExecutor(1) as old:
    assert old.submit(torch.get_num_threads).result() == 3
    with threads.own_threads(1):
        torch.ones(1 << 20).exp().log() @ torch.ones(1 << 20)
        print(torch.get_num_threads(), settled(before + 1) - before - 1)  # 1: the other thread
        print(old.submit(torch.get_num_threads).result())
        with ThreadPoolExecutor(1) as new, threads.own_threads(2):
            print(new.submit(torch.get_num_threads).result(), torch.get_num_threads())
    print(torch.get_num_threads())
"""
    assert told(script) == ["1", "0", "3", "3", "2", "3"]


@linux
def test_a_fork_does_not_wait_for_the_threads_of_its_parent(told):
    script = """
threads.end_spinning()
compute()
child = os.fork()
if child == 0:
    threads.end_spinning()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert told(script) == ["0"]


@linux
def test_a_step_of_the_kernels_has_no_spinning_threads_beside_it(told):
    """After a prompt that torch takes, and after what the program computes between two steps."""
    pytest.importorskip("numba")
    script = """
from gradus import LLM, SamplingParams
llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=1)
decode, seen = llm.engine.runner.step.passes.decode, []
run, kernels = decode.run, before + decode.threads - 1

def noted(*given, **more):
    seen.append(settled(kernels) - kernels)
    return run(*given, **more)

decode.run = noted
llm.submit("a" * 200, SamplingParams(max_tokens=9, ignore_eos=True))
while llm.has_work:
    compute()
    assert tasks() - kernels == 2
    llm.step()
print(*seen)
"""
    assert told(script) == ["0"] * 8
