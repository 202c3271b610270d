"""The machine behind a number, and its measured bandwidth and arithmetic rate, on which every prediction rests.

Rates are measured on random data (a GPU multiplies zeros faster), over more memory than any cache holds. The best of
several runs counts, because a ceiling is the undisturbed rate.
"""

import platform
import re
import subprocess
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import gradus
from gradus.bench.measure import gpu
from gradus.bench.measure.drive import synchronize
from gradus.bench.predict.roofline import Machine
from gradus.bench.statistics import significant
from gradus.doctor import machine

PACKAGES = ("torch", "triton", "numba", "transformers", "llama-cpp-python", "numpy")


def fingerprint(device: torch.device, *, quick: bool = False) -> dict[str, Any]:
    """The machine for results.json: hardware, rates, versions. quick: less exact rates, from less work."""
    known = machine.hardware()
    hardware = {name: known[name] for name in ("processor", "cores", "instruction sets")}
    hardware["memory"] = known["memory"].split(",")[0]
    if device.type == "cuda":
        hardware |= gpu.describe(device.index or 0)
    return {"hardware": hardware, "rates": rates(device, quick), "versions": versions()}


def hardware_name(device: torch.device) -> str:
    """The folder under reports/: "cpu", or the GPU's model without its maker and its memory, as in "h200"."""
    if device.type != "cuda":
        return "cpu"
    words = re.findall(r"[a-z0-9]+", torch.cuda.get_device_properties(device).name.lower())
    said = re.compile(r"nvidia|geforce|tesla|\d+gb|hbm\w+")
    return "-".join(word for word in words if not said.fullmatch(word)) or "gpu"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "gradus": gradus.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}  # with its build: 2.13.0+cpu


def commit() -> str:
    """The commit that is checked out, with "+" where files differ from it; "unknown" outside a git checkout."""
    root = Path(gradus.__file__).parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "phases")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


# -- ceilings ----------------------------------------------------------------------------------------------------------


@cache
def rates(device: torch.device, quick: bool = False) -> dict[str, float]:
    """read_gb_s, copy_gb_s (read and written), float32_tflop_s, bfloat16_tflop_s, launch_us (one tiny operation)."""
    on_gpu = device.type == "cuda"
    size = (1 << 30 if on_gpu else 1 << 26) >> (1 if quick else 0)  # float32 values: 4 GiB, or 256 MiB
    return {
        "read_gb_s": significant(_read_rate(device, size) / 1e9),
        "copy_gb_s": significant(_copy_rate(device, size // 2) / 1e9),
        "float32_tflop_s": significant(_product_rate(device, torch.float32, 4096 if on_gpu else 1024) / 1e12),
        "bfloat16_tflop_s": significant(_product_rate(device, torch.bfloat16, 8192 if on_gpu else 512) / 1e12),
        "launch_us": significant(_launch_seconds(device) * 1e6),
    }


def machine_of(found: dict[str, float], activations: torch.dtype, weights: torch.dtype | None = None) -> Machine:
    """The ceilings for a model. weights: their type, if it is not the activations'.

    Products run in the activations' type. Narrower weights may be widened for that, or the activations narrowed;
    loading a model measures which is faster. So the ceiling is the faster of both types.
    """
    rates = {"float32" if kind == torch.float32 else "bfloat16" for kind in (activations, weights or activations)}
    return Machine(bandwidth=found["read_gb_s"] * 1e9, rate=max(found[f"{kind}_tflop_s"] for kind in rates) * 1e12)


def _read_rate(device: torch.device, size: int) -> float:
    values = torch.randn(size, device=device)
    return values.nbytes / _fastest(values.sum, device)


def _copy_rate(device: torch.device, size: int) -> float:
    source = torch.randn(size, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _product_rate(device: torch.device, dtype: torch.dtype, width: int) -> float:
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    return 2 * width**3 / _fastest(lambda: left @ right.T, device)  # the layout of a linear layer's weights


def _launch_seconds(device: torch.device, count: int = 2000) -> float:
    """Seconds of one operation on one number, from Python: the cost of a launch."""
    value = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(count):
            value.add_(1.0)

    return _fastest(many, device) / count


def _fastest(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Seconds of the fastest run after two warm-ups, each synchronized."""
    times = []
    for repeat in range(repeats + 2):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        if repeat >= 2:
            times.append(time.perf_counter() - start)
    return min(times)
