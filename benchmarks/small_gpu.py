"""Check that the engine starts on a GPU with little free memory, answers the same there, and leaves nothing behind.

    PYTHONPATH=src:. python3 benchmarks/small_gpu.py --out benchmarks/small_gpu.json

Another process holds all of the GPU's memory except the row's `free_gb`. The engine starts with nothing set, so its
defaults are lowered, and serves a crowd of prompts of mixed lengths. Then the other process ends. An engine on the free
GPU gets the first one's final settings, and the same prompts. A sum in bfloat16 depends on the number of rows
multiplied at once, and so on the graphs that were captured. So tokens may differ at a close call,
where the second engine's own log-probabilities are nearly equal. The script fails (exit code 1) beyond that,
or if an engine does not start.

After that, engines start and end one after another in this process. Memory, threads and file descriptors in use after
the last must equal those after the second.
"""

import argparse
import gc
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from gradus import LLM, Completion, GradusError, SamplingParams
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.execution.memory.device_memory import free_memory
from gradus.models.precision import resolve_device

GB = 10**9
REQUESTS, LONGEST, ANSWERS = 64, 900, (8, 40)  # tokens of the longest prompt; least and most tokens of an answer
ENGINES = 20
TOP = 5  # likeliest tokens among which the other engine's choice must be
CLOSE_CALL = 0.1  # in log-probability: random weights make logits of a few units, which bfloat16 rounds to 1/64
HELD = "held"
GROWTH = GB // 50  # bytes that a driver may keep for code loaded in between
CPU_HOLDS = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model, and the GB of the GPU that are free for all of it."""

    model: str
    free_gb: float
    quantize: str | None = None


CASES = (
    Case("random:smollm2-135m", 1),
    Case("random:qwen3-0.6b", 3),
    Case("random:llama-3.2-1b", 4.5),
    Case("random:llama-3.1-8b", 8, "int4"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="with cpu, nothing is held: a rehearsal of the script")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="a file for the results, in addition to stdout")
    parser.add_argument("--hold", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    if asked.hold is not None:
        hold(device, asked.hold)
        return 0
    machine = fingerprint(device, quick=True)
    found: dict[str, Any] = {"commit": asked.commit or commit(), **machine, "rows": [], "engines": None}

    def keep() -> None:
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")

    for case in CASES:
        found["rows"].append(measured(case, device))
        keep()
    found["engines"] = in_a_row(device)
    keep()
    print(json.dumps(found, indent=1))
    return 0 if found["engines"]["ok"] and all(row["ok"] for row in found["rows"]) else 1


# -- a GPU with little left --------------------------------------------------------------------------------------------


def hold(device: torch.device, leave: int) -> None:
    """Run as the other process: leave `leave` bytes free until stdin ends."""
    size = CPU_HOLDS
    if device.type == "cuda":
        torch.zeros(1, device=device)  # CUDA's own part comes first
        size = max(0, free_memory(device) - leave)
    held = torch.empty(size, dtype=torch.uint8, device=device)
    print(HELD, held.nbytes, flush=True)
    sys.stdin.read()


@contextmanager
def others_hold(device: torch.device, leave: int) -> Iterator[int]:
    """Let another process hold all of the GPU except `leave` bytes. Yields the bytes it holds without CUDA's own."""
    if device.type == "cuda":
        torch.zeros(1, device=device)  # allocates this process's part of CUDA first
        free_memory(device)
    command = [sys.executable, __file__, "--hold", str(leave), "--device", str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        try:
            word, _, size = other.stdout.readline().partition(" ")
            if word != HELD:
                raise SystemExit(f"no process holds memory: {' '.join(command)} ended")
            yield int(size)
        finally:
            other.stdin.close()  # it ends


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the engine's log messages, warnings and worse."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ear, log = Ear(logging.WARNING), logging.getLogger("gradus")
    log.addHandler(ear)
    try:
        yield said
    finally:
        log.removeHandler(ear)


def measured(case: Case, device: torch.device) -> dict[str, Any]:
    """Make the case's row. ok: the engine started, and its answers are the other one's, up to close calls."""
    row: dict[str, Any] = {"model": case.model, "quantize": case.quantize, "free_gb": case.free_gb, "ok": False}
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    given: dict[str, Any] = {"device": str(device), "dtype": dtype, "quantize": case.quantize}
    try:
        with others_hold(device, int(case.free_gb * GB)):
            small, facts, settings = in_little_memory(case, device, given)
            gc.collect()
        row |= facts
        other = LLM(case.model, **given, **settings)
        whole = answers(other, logprobs=TOP)
        del other
    except GradusError as refused:
        return row | {"failed": str(refused)}
    finally:
        gc.collect()
    gaps = [gap for one, two in zip(small, whole, strict=True) if (gap := parted(one.token_ids, two)) is not None]
    row |= {"same": len(small) - len(gaps), "of": len(small), "parted_by": [round(gap, 4) for gap in gaps]}
    return row | {"ok": all(gap < CLOSE_CALL for gap in gaps)}


def in_little_memory(
    case: Case, device: torch.device, given: dict[str, Any]
) -> tuple[list[Completion], dict[str, Any], dict[str, Any]]:
    """Run an engine with nothing set. Returns its answers, facts for its row, and its final settings."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    with listening() as said:
        llm = LLM(case.model, **given)
    facts: dict[str, Any] = {"start_s": round(time.perf_counter() - started, 2), "said": said}
    done = answers(llm)
    settings = {name: llm.settings[name] for name in ("max_sequences", "token_budget", "cache_tokens")}
    settings["context_length"] = llm.limits.context_length
    if device.type == "cuda":
        facts |= {
            "peak_allocated_gb": gigabytes(torch.cuda.max_memory_allocated(device)),
            "peak_reserved_gb": gigabytes(torch.cuda.max_memory_reserved(device)),
            "left_gb": gigabytes(torch.cuda.mem_get_info(device)[0]),
        }
    return done, facts | {"settings": dict(settings)}, settings


def gigabytes(size: int) -> float:
    return round(size / GB, 3)


def answers(llm: LLM, logprobs: int | None = None) -> list[Completion]:
    """Answer prompts of mixed lengths greedily, all at once; the same for every engine of the same context."""
    draw = random.Random(7)
    longest = max(1, min(LONGEST, llm.limits.context_length - ANSWERS[1]))
    prompts, params = [], []
    for _ in range(REQUESTS):
        length = draw.randint(1, longest)
        prompts.append([draw.randrange(5, llm.limits.vocab_size) for _ in range(length)])
        params.append(SamplingParams(max_tokens=draw.randint(*ANSWERS), ignore_eos=True, logprobs=logprobs))
    return llm.generate(prompts, params)


def parted(tokens: Sequence[int], other: Completion) -> float | None:
    """How much less likely the other engine finds the first differing token than its own choice; None: all agree."""
    assert other.logprobs is not None and len(tokens) == len(other.token_ids)
    for token, choice, known in zip(tokens, other.token_ids, other.logprobs, strict=True):
        if token != choice:
            top = dict(known.top)
            return top[choice] - top[token] if token in top else float("inf")
    return None


# -- engines in a row --------------------------------------------------------------------------------------------------


def in_a_row(device: torch.device) -> dict[str, Any]:
    """Compare the resources in use after the second engine and after the last. ok: nothing has grown."""
    uses = []
    for _ in range(ENGINES):
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        llm = LLM("random:tiny-llama", device=str(device), dtype=dtype, max_sequences=4, token_budget=64)
        llm.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=8, ignore_eos=True))
        del llm
        gc.collect()
        uses.append(in_use(device))
    second, last = uses[1], uses[-1]
    grown = any(last[name] > second[name] for name in ("threads", "descriptors"))
    ok = not grown and last["gpu_bytes"] <= second["gpu_bytes"] + GROWTH
    return {"count": ENGINES, "after_second": second, "after_last": last, "ok": ok}


def in_use(device: torch.device) -> dict[str, int]:
    """Ask the driver for the GPU's memory, and psutil for this process's threads and descriptors."""
    memory = 0
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)  # as other processes find it: torch's cache counts as used
        memory = total - free
    process = psutil.Process()
    return {"gpu_bytes": memory, "threads": process.num_threads(), "descriptors": process.num_fds()}


if __name__ == "__main__":
    sys.exit(ran(main))
