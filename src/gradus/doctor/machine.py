"""Check what this machine can do with Gradus: every check really runs, and each failure says what to do about it.

A check returns what it found. A check that raises has failed: the exception's text becomes the detail, the check's
remedy the advice. No torch is imported before the check that imports it.
"""

import math
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from gradus.device.processor import instruction_sets, processor_name
from gradus.device.threads import usable_cores, use
from gradus.doctor.finding import FAILED, NOTE, OK, WARNING, Finding
from gradus.errors import ConfigError

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "torch", "triton", "numba", "numpy", "psutil", "tokenizers", "safetensors", "gguf",
    "huggingface-hub", "jinja2", "fastapi", "uvicorn", "typer", "rich",
)  # fmt: skip
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
"""The range of pyproject.toml, repeated: an installation's metadata may be missing or out of date."""
FREE_DISK_WANTED = 2 * 2**30
SERVER_PORT = 8000


@dataclass(frozen=True, slots=True)
class Report:
    hardware: dict[str, str]
    versions: dict[str, str]
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether everything essential works."""
        return not any(finding.status == FAILED for finding in self.findings)


def examine() -> Report:
    """Run every check, in an order in which the cause comes before what it breaks."""
    install = "pip install -c constraints.txt -e . installs it"
    findings = [
        _check("system", WARNING, _system, "use Linux, macOS on an Apple processor, or WSL on Windows"),
        _check("python", FAILED, _python, "use Python {}.{} to {}.{}".format(*OLDEST_PYTHON, *NEWEST_PYTHON)),
        _check("torch", FAILED, _torch, install),
        _check("tokenizers", FAILED, _tokenizers, install),
        _check("safetensors", FAILED, _safetensors, install),
        _check("gguf", WARNING, _gguf, f"{install}; GGUF files need it"),
        _check("web server", NOTE, _web_server, "gradus serve needs it: run pip install -e '.[server]' in the clone"),
        _check("GPU", NOTE, _gpu, "small models need none; for larger ones, on Linux, install a CUDA build of torch"),
        _check("triton", NOTE, _triton, "only GPU kernels need it; on Linux, a CUDA build of torch brings it along"),
        _check(
            "CPU kernels",
            NOTE,
            _cpu_kernels,
            "pip install numba; until then decode steps run in torch, slower",
        ),
        _check("phases", FAILED, _phases, "clone the repository and run pip install -e . inside it"),
        _check("model cache", WARNING, _model_cache, "free some space, or name another folder in GRADUS_HOME"),
        _check("models", WARNING, _models, "gradus pull smollm2-135m"),
        _check("serving", WARNING, _serving, "end other programs, or serve less: gradus serve --dry-run shows where"),
        _check(f"port {SERVER_PORT}", WARNING, _port, "stop what listens there, or serve with --port 8001"),
        *unsafe_settings(os.environ),
    ]
    return Report(hardware(), versions(), findings)


def _check(name: str, severity: str, look: Callable[[], str], remedy: str) -> Finding:
    """Run one check. severity: the status of its failure."""
    try:
        return Finding(name, OK, look())
    except Exception as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        return Finding(name, severity, detail, remedy)


# -- what the machine is ---------------------------------------------------------------------------------------------


def hardware() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name() or "unknown",
        "cores": str(usable_cores()),
        "instruction sets": instruction_sets() or "unknown",
        "memory": _memory(),
    }


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _installed(name) for name in PACKAGES}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    from gradus.device.host_memory import HostMemory

    try:
        memory = HostMemory.now()
    except ConfigError:
        return "unknown"
    return f"{_gib(memory.total)}, {_gib(memory.free)} of it free for this process by {memory.source}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


# -- what works ------------------------------------------------------------------------------------------------------


def _system() -> str:
    match platform.system(), platform.machine():
        case "Linux", _:
            return "Linux in WSL, supported" if "microsoft" in platform.release().lower() else "Linux, supported"
        case "Darwin", "arm64":
            return f"macOS {platform.mac_ver()[0]} on an Apple processor, supported; its GPU is not used"
        case "Darwin", _:  # also Python for Intel on an Apple processor
            raise RuntimeError("macOS on an Intel processor, or Python built for one: PyTorch has no build for it")
        case "Windows", _:
            raise RuntimeError("Windows itself has not been tried")
        case name, _:
            raise RuntimeError(f"{name} has not been tried")


def _python() -> str:
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        raise RuntimeError(f"Python {platform.python_version()} is not supported")
    return f"{platform.python_version()} at {sys.executable}"


def _torch() -> str:
    import torch

    single, half = _matmul_gflops(torch.float32), _matmul_gflops(torch.bfloat16)
    return (
        f"{torch.__version__}, {torch.get_num_threads()} threads, "
        f"a 256 × 256 product at {single:.0f} GFLOP/s in float32, {half:.0f} in bfloat16"
    )


def _matmul_gflops(dtype: "torch.dtype", size: int = 256) -> float:
    """Billions of floating-point operations per second, in a square product. Raises if the product is wrong."""
    import torch

    identity, matrix = torch.eye(size, dtype=dtype), torch.rand(size, size).to(dtype)
    if not torch.equal(identity @ matrix, matrix):  # also the warm-up
        raise RuntimeError(f"torch multiplies {dtype} matrices wrongly on this processor")
    repeats, start = 5, time.perf_counter()
    for _ in range(repeats):
        identity @ matrix
    return repeats * 2 * size**3 / (time.perf_counter() - start) / 1e9


def _tokenizers() -> str:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if tokenizer.encode("b a b").ids != [1, 0, 1]:
        raise RuntimeError("tokenizers encodes wrongly")
    return f"{tokenizers.__version__} encodes"


def _safetensors() -> str:
    import numpy
    from safetensors.numpy import load, save

    if load(save({"x": numpy.arange(3)}))["x"].tolist() != [0, 1, 2]:
        raise RuntimeError("safetensors reads something else than it wrote")
    return "reads what it wrote"


def _gguf() -> str:
    import numpy
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    values = numpy.linspace(-1, 1, 32, dtype=numpy.float32)
    error = abs(dequantize(quantize(values, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0) - values).max()
    if error > 0.01:
        raise RuntimeError(f"Q8_0 values come back {error:.2g} off")
    return "reads quantized values"


def _web_server() -> str:
    return f"fastapi {import_module('fastapi').__version__}, uvicorn {import_module('uvicorn').__version__}"


def _gpu() -> str:
    """Each GPU, how much of its memory is free, and who holds the rest."""
    import torch

    from gradus.execution.memory.device_memory import DeviceMemory

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA GPU that torch can use")
    names = []
    for index in range(torch.cuda.device_count()):
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        if (ones @ ones).sum().item() != 64**3:
            raise RuntimeError(f"GPU {index} multiplies matrices wrongly")
        properties = torch.cuda.get_device_properties(index)
        device = torch.device("cuda", index)
        memory = DeviceMemory.of(device)
        names.append(
            f"{properties.name} (sm_{properties.major}{properties.minor}, {_gib(memory.free)} free"
            f"{memory.holders(device)})"
        )
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"


def _triton() -> str:
    return f"triton {import_module('triton').__version__}"


def _cpu_kernels() -> str:
    """Say whether decode steps on a CPU run in kernels or in torch."""
    from gradus.kernels import cpu

    if reason := cpu.missing():
        raise RuntimeError(reason)
    from numba.core.registry import cpu_target

    from gradus.kernels.cpu import byte_products
    from gradus.kernels.cpu.decode_step import run
    from gradus.kernels.cpu.elementary import exp_of
    from gradus.kernels.cpu.kept.code import danger_to, place_of

    if abs(exp_of(1.0) - math.e) > 1e-6:
        raise RuntimeError("numba compiles wrongly on this processor")
    _, processor, _ = cpu_target.target_context.codegen().magic_tuple()
    place, danger = place_of(run), danger_to(run)
    return (
        f"decode steps run in them, on {use(None)} threads; compiled for {processor}, "
        f"int8 by {byte_products.NAME or 'plain loops'}; "
        + (
            f"code is kept in {place}"
            if place
            else f"code is not kept, so every start compiles: {danger or 'no place can be written'}"
        )
    )


def _phases() -> str:
    from gradus import phases

    phases.highest()  # explains what to do if there are none
    phases.load(phases.engines()[-1].name)
    return f"{', '.join(phase.name for phase in phases.available())}; where none is named, the final engine runs"


def _model_cache() -> str:
    from gradus.loading import cache_folder

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".doctor-{os.getpid()}"
    probe.write_text("writable")
    probe.unlink()
    free = shutil.disk_usage(folder).free
    if free < FREE_DISK_WANTED:
        raise RuntimeError(f"{folder} has only {free / 2**30:.1f} GiB free")
    return f"{folder} is writable, {free / 2**30:.0f} GiB free"


def _models() -> str:
    from gradus.loading import CATALOGUE

    pulled = [name for name, entry in CATALOGUE.items() if entry.pulled]
    if not pulled:
        raise RuntimeError("no model is pulled yet")
    return f"{', '.join(pulled)} pulled"


def _serving() -> str:
    """Say how much memory `gradus serve` takes at most, in float32: measuring the faster precision takes seconds."""
    from gradus.loading import CATALOGUE, open_checkpoint
    from gradus.server.config import ServerConfig
    from gradus.server.engine.loading import planned

    settings = ServerConfig(dtype="float32")
    name = settings.model if CATALOGUE[settings.model].pulled else f"random:{settings.model}"  # of the same shape
    plan, _ = planned(settings, open_checkpoint(name))
    if not plan.fits:
        raise RuntimeError(f"{settings.model} does not fit into the {_gib(plan.free_bytes)} that are free")
    return (
        f"{settings.model} would take up to {_gib(plan.beside_cache)} and a cache of {_gib(plan.cache_bytes)}, "
        f"of {_gib(plan.free_bytes)} free on the {plan.device}"
    )


def _port() -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", SERVER_PORT))
    return "free"


# -- what is unsafe --------------------------------------------------------------------------------------------------


def unsafe_settings(environment: Mapping[str, str]) -> list[Finding]:
    """Each setting of this process that weakens a protection, named. A safe machine has none."""
    findings = []
    if environment.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "true", "y", "yes"):
        findings.append(
            _unsafe("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set: torch would run code from .bin files", "unset it")
        )
    if not __debug__:
        findings.append(
            _unsafe("assertions are off (python -O or PYTHONOPTIMIZE): no invariant is checked", "unset it")
        )
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        findings.append(_unsafe("this runs as root: a fault would have the whole machine", "use an ordinary user"))
    findings += _unsafe_code()
    folder = _shared_folder()
    if folder is not None:
        findings.append(_unsafe(f"{folder}: other users may replace the models in it", f"chmod go-w {folder}"))
    return findings or [Finding("unsafe settings", OK, "none")]


def _unsafe_code() -> list[Finding]:
    """The folder of compiled CPU kernels, if other users could put code into it."""
    from gradus.kernels import cpu

    if cpu.missing():
        return []
    from gradus.kernels.cpu.decode_step import run
    from gradus.kernels.cpu.kept.code import danger_to

    danger = danger_to(run)
    advice = "chmod go-w it, or name a folder of your own in NUMBA_CACHE_DIR"
    return [] if danger is None else [_unsafe(f"compiled code would be kept where {danger}", advice)]


def _shared_folder() -> Path | None:
    """The model cache, if someone else may write to it."""
    from gradus.loading import cache_folder

    folder = cache_folder()
    return folder if folder.exists() and folder.stat().st_mode & 0o022 else None


def _unsafe(detail: str, advice: str) -> Finding:
    return Finding("unsafe setting", WARNING, detail, advice)
