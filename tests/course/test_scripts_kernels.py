"""The commands of p09's lesson print what it shows of them, and a reader's kernels run without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

import triton

from tests.course.conftest import ROOT, reference
from tests.forked import run_forked

pytestmark = pytest.mark.slow
FOLDER = ROOT / "phases/p09_triton_attention"
LESSON = (FOLDER / "README.md").read_text(encoding="utf-8")
TORCH, TRITON = "2.13", "3.7.1"  # whose operations and whose compiler the lesson's numbers are
ONCE = ["generate", "Once upon a time", "--phase", "p09"]


def python(*command: str, where: Path = ROOT) -> subprocess.CompletedProcess:
    """Run a module in a process of its own, on the CPU: Triton decides at its import whether it interprets."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return run_forked([sys.executable, "-m", *command], cwd=where, env=kept | hidden, timeout=120)


def gradus(*arguments: str, code: int = 0, where: Path = ROOT) -> tuple[str, str]:
    done = python("gradus", *arguments, where=where)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def block(mark: str) -> list[str]:
    """The lines of the lesson's block with this mark."""
    found = re.search(rf"^```text {mark}\n(.*?)^```$", LESSON, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].splitlines()


def test_the_lesson_shows_which_kernels_run_in_its_engine():
    _, said = gradus(*ONCE)
    assert [line for line in said.splitlines() if "generated" not in line] == block("generate")


def test_the_lesson_shows_what_its_demo_prints():
    out, _ = gradus("demo", "p09")
    shown, lines = block("demo"), out.splitlines()
    if not torch.__version__.startswith(TORCH):  # another torch may take other operations for the same
        shown, lines = ([line for line in each if not re.search("gathered|torch", line)] for each in (shown, lines))
    assert lines == shown


REGISTERS = "phases.p09_triton_attention.registers"


@pytest.mark.skipif(triton.__version__ != TRITON, reason="another compiler takes other registers")
def test_the_lesson_shows_the_registers_that_its_kernels_take():
    assert python(REGISTERS).stdout.splitlines() == block("registers")


@pytest.fixture
def mine(tmp_path):
    """A reader's folder with all three files."""
    for name in ("norm.py", "paged_attention.py", "splits.py"):
        (tmp_path / name).write_text(reference("p09", name), encoding="utf-8")
    return tmp_path


def test_a_readers_kernels_run_from_their_own_files(mine):
    _, said = gradus("generate", "Once", "--max-tokens", "3", "--impl", str(mine), where=mine)
    for kernel, file in (("add_rms_norm", "norm"), ("attend_part", "splits"), ("paged_attention", "paged_attention")):
        assert f"{kernel}_kernel ({file}.py): " in said, said
    assert "your p09: norm.py, paged_attention.py, splits.py" in said
    assert "the same as p06's, in torch" in said


WRONG = {
    "norm.py": ("tl.rsqrt(tl.sum(x * x, 0) / D + eps)", "tl.rsqrt(tl.sum(x * x, 0) / BLOCK + eps) * 0.3"),
    "splits.py": ("tl.sum(seen * shrink[:, None], 0)", "-tl.sum(seen * shrink[:, None], 0)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_tokens_that_are_not_the_references_are_said_to_be_wrong(mine, name):
    right, wrong = WRONG[name]
    file = mine / name
    assert file.read_text(encoding="utf-8").count(right) == 1
    file.write_text(file.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    _, said = gradus("generate", "Once upon", "--max-tokens", "4", "--impl", str(mine), code=1)
    assert re.search(r"the tokens are not those of the reference: token \d+ is \d+, and p06 gives \d+", said)


def test_registers_are_those_of_a_readers_kernel(mine):
    text = (mine / "norm.py").read_text(encoding="utf-8")
    first = "    column = tl.arange(0, BLOCK)\n"
    assert text.count(first) == 1
    (mine / "norm.py").write_text(text.replace(first, f'    tl.static_assert(BLOCK < 0, "mine")\n{first}'))
    done = python(REGISTERS, "--impl", str(mine))
    assert done.returncode and "mine" in done.stderr
