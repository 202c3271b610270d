"""Time a prompt's step in each scheme, and the kernels in it.

    PYTHONPATH=src:. python3 benchmarks/prefill.py --out benchmarks/prefill.json

Each scheme gets an engine of its own: prompts alone are answered with one token each, in a few timed rounds,
then one more under torch's profiler. So the kernels' times come from the same step at the same temperature: a GPU at
its power limit runs a kernel more slowly between others than alone.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from gradus import LLM, SamplingParams
from gradus.bench.measure.drive import synchronize
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.profiler import without_markers
from gradus.bench.run.script import ran
from gradus.models.precision import resolve_device

PLAIN = "bfloat16"
SCHEMES = (PLAIN, "int4", "int8", "fp8")
NAMED = 60  # characters of a kernel's name
KEPT = 12  # kernels of a step
Row = dict[str, float | list[float] | dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:llama-3.1-8b")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="%(default)s by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=4, help="per round")
    parser.add_argument("--tokens", type=int, default=8192, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    found = {"commit": asked.commit or commit(), **fingerprint(device, quick=True), "model": asked.model, "rows": []}
    found |= {"prompts": asked.prompts, "tokens": asked.tokens}
    for scheme in asked.schemes.split(","):
        row = measure(asked.model, scheme, device, asked.prompts, asked.tokens, asked.rounds)
        found["rows"].append({"scheme": scheme, **row})
        print(json.dumps(found["rows"][-1], indent=1), flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(model: str, scheme: str, device: torch.device, prompts: int, tokens: int, rounds: int) -> Row:
    """Measure tokens per second of each round, and the GPU's milliseconds per prompt, in total and by kernel."""
    quantize = None if scheme == PLAIN else scheme
    llm = LLM(model, device=str(device), dtype="bfloat16", quantize=quantize, context_length=tokens + 8)
    try:
        return timed(llm, device, prompts, tokens, rounds)
    finally:
        del llm
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def timed(llm: LLM, device: torch.device, prompts: int, tokens: int, rounds: int) -> Row:
    draw = random.Random(0)

    def play() -> float:
        drawn = [[draw.randrange(1, llm.limits.vocab_size) for _ in range(tokens)] for _ in range(prompts)]
        begun = time.perf_counter()
        llm.generate(drawn, SamplingParams(max_tokens=1, ignore_eos=True))
        synchronize(device)
        return time.perf_counter() - begun

    play()
    rates = [prompts * tokens / play() for _ in range(rounds)]
    kernels = kernel_ms(play, prompts) if device.type == "cuda" else {}
    return {
        "tok_s": round(statistics.median(rates), 1),
        "round_tok_s": [round(rate, 1) for rate in rates],
        "busy_ms": round(sum(kernels.values()), 2),
        "kernel_ms": dict(list(kernels.items())[:KEPT]),
    }


def kernel_ms(play: Callable[[], float], prompts: int) -> dict[str, float]:
    """Measure milliseconds by kernel, the slowest first."""
    with without_markers(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
        play()
    took: dict[str, float] = defaultdict(float)
    for event in profiled.events() or ():
        if event.device_type == DeviceType.CUDA:
            took[event.name[:NAMED]] += event.time_range.elapsed_us() / 1e3 / prompts
    return {name: round(ms, 3) for name, ms in sorted(took.items(), key=lambda each: -each[1])}


if __name__ == "__main__":
    sys.exit(ran(main))
