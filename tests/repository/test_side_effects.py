"""Importing gradus, and building an engine, changes nothing of the process that does it: the program's settings stay.

What other libraries change when they are imported is theirs: they are imported before the first look.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gradus"
COMMANDS = {"gradus.__main__", "gradus.bench.__main__"}  # run something when they are imported, by design

LOOK = """
import gc, hashlib, importlib, json, logging, os, random, signal, socket, sys, warnings

def look():
    import numpy, torch
    cuda, digest = torch.backends.cuda, lambda value: hashlib.sha256(repr(value).encode()).hexdigest()
    return {
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "path": list(sys.path),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), repr(gc.callbacks)],
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.displayhook, sys.meta_path, sys.path_hooks)],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout()],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "warnings": [repr(entry) for entry in warnings.filters],
        "logging": [repr(logging.root.handlers), logging.root.level, logging.root.manager.disable],
        "numpy": [numpy.geterr(), repr(numpy.get_printoptions())],
        "random": [digest(random.getstate()), digest(numpy.random.get_state()), digest(torch.get_rng_state().tolist())],
        "torch attention": [
            cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ],
        "torch arithmetic": [
            torch.get_float32_matmul_precision(), cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(),
            cuda.matmul.allow_bf16_reduced_precision_reduction, torch.backends.mkldnn.enabled,
        ],
        "torch modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), repr(torch.get_default_dtype())],
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    }

def load(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.split(".")[0] not in OPTIONAL:
                raise

def changed(before):
    after = look()
    return [name for name in before if before[name] != after[name]]
"""
OPTIONAL = ("triton", "transformers", "llama_cpp", "opentelemetry", "ray")


IMPORT = re.compile(r"^ *(?:from (\w[\w.]*) import |import (\w[\w.]*(?:, \w[\w.]*)*))", re.MULTILINE)


def modules() -> list[str]:
    """Every module of gradus."""
    paths = (path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py"))
    return sorted({".".join(path.parts).removesuffix(".__init__") for path in paths} - COMMANDS)


def libraries() -> list[str]:
    """Every module of somebody else's that gradus imports anywhere."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for origin, names in IMPORT.findall(path.read_text(encoding="utf-8")):
            found |= {origin} if origin else set(names.split(", "))
    return sorted(name for name in found if name.split(".")[0] != "gradus")


ENGINE = """
from gradus import LLM, SamplingParams
llm = LLM("random:tiny-llama", phase={phase!r}, device="cpu", max_sequences=2, gc_freeze=False)
llm.generate(["Hello"], SamplingParams(max_tokens=3, temperature=1.0))
"""
WRONG = """
import torch
os.environ["OMP_WAIT_POLICY"] = "passive"
torch.backends.cuda.enable_cudnn_sdp(False)
torch.rand(1)
logging.basicConfig()
warnings.simplefilter("ignore")
"""
STEPS = {
    "importing every module": f"load({modules()})",
    "the final engine": ENGINE.format(phase=None),
    "p01": ENGINE.format(phase="p01"),
    "what must be noticed": WRONG,
}


@pytest.fixture(scope="module")
def changes() -> dict[str, list[str]]:
    """Return the changes that each step leaves. They run one after the other, in an interpreter that has all
    libraries."""
    lines = [f"OPTIONAL = {OPTIONAL}", LOOK, f"load({libraries()})", "found = {}"]
    for name, code in STEPS.items():
        lines += ["before = look()", code, f"found[{name!r}] = changed(before)"]
    script = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=150)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_importing_every_module_changes_nothing(changes):
    assert changes["importing every module"] == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["the final engine", "p01"])
def test_building_and_using_an_engine_changes_nothing(changes, engine):
    assert changes[engine] == []


@pytest.mark.slow
def test_the_comparison_catches(changes):
    found = changes["what must be noticed"]
    assert found == ["environment", "warnings", "logging", "random", "torch attention"]
