"""A script in `benchmarks` that cannot run says why in one line."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.bench.run import script
from gradus.errors import ConfigError

ROOT = Path(__file__).parents[2]
RUN = 'if __name__ == "__main__":'
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").rglob("*.py") if RUN in path.read_text(encoding="utf-8"))


def test_a_mistake_becomes_one_line_and_the_exit_code_of_one(monkeypatch, capsys):
    def main() -> None:
        raise ConfigError("no GPU: find one")

    monkeypatch.setattr("sys.argv", ["benchmarks/some_kernel.py"])
    assert script.ran(main) == 2
    assert capsys.readouterr().err == "some_kernel: no GPU: find one\n"


def test_a_defect_keeps_its_traceback_and_a_result_its_exit_code():
    with pytest.raises(ZeroDivisionError):
        script.ran(lambda: 1 // 0)
    assert script.ran(lambda: None) == 0 and script.ran(lambda: 3) == 3


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_through_the_one_way(path):
    """Except for what does without Gradus: vllm_block.py, and clients in processes of their own."""
    ends = [ast.unparse(node) for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    assert ("sys.exit(ran(main))" in ends[-1]) == (path.stem not in ("vllm_block", "stream_client", "agent_loop"))


NEED_TRITON = [path for path in SCRIPTS if "need_triton" in path.read_text(encoding="utf-8")]

RUN_ALL = """
import contextlib, io, json, os, runpy, sys
from importlib import util
import torch  # once for all

def run_without(hidden):
    find = util.find_spec
    for name in hidden:
        assert name not in sys.modules
        sys.modules[name] = None
    util.find_spec = lambda name, *more: None if name in hidden else find(name, *more)
    for path in PATHS:
        sys.argv = [path, "--out", OUT]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                yield [path, end.code, said.getvalue()]

for hidden in HIDDEN:
    if os.fork() == 0:
        print(json.dumps([*run_without(hidden)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
LACKS = {
    "Triton is not installed (it comes with torch's CUDA build)": ["triton"],
    "device 'cuda': no CUDA GPU is usable here; `gradus doctor` says why, `cpu` always works": [],
}
"""A script's complaint, and the modules that are hidden from it."""


def test_a_script_says_in_one_line_what_it_lacks(tmp_path):
    """Each script runs in a process, forked for each lack, that sees no GPU either."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    paths, out = [str(path) for path in NEED_TRITON], str(tmp_path / "found.json")
    code = f"HIDDEN, PATHS, OUT = {[*LACKS.values()]!r}, {paths!r}, {out!r}\n{RUN_ALL}"
    environment = os.environ | {"PYTHONPATH": f"src:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    for lack, said in zip(LACKS, done.stdout.splitlines(), strict=True):
        ends = json.loads(said)
        assert ends == [[str(path), 2, f"{path.stem}: {lack}\n"] for path in NEED_TRITON] and len(ends) > 2


ENDED_BY_TERM = """
import os, signal, sys
from contextlib import contextmanager
from gradus.bench.run.script import ran

@contextmanager
def serving():
    try:
        yield
    finally:
        print("stopped", flush=True)

def main():
    with serving():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

sys.exit(ran(main))
"""


def test_sigterm_ends_what_a_script_has_started():
    done = subprocess.run([sys.executable, "-c", ENDED_BY_TERM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("stopped\n", 143)
