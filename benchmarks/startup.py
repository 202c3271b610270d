"""Measure the time until the first token, and whether the first crowd is served as fast as the next.

    PYTHONPATH=src:. python3 benchmarks/startup.py --serve random:smollm2-135m --out benchmarks/startup.json

    PYTHONPATH=src:. python3 benchmarks/startup.py --device cpu --model random:smollm2-135m --requests 4

Each model has two processes, one after the other: the first finds none of our kernels compiled, the
second finds those of the first in the caches of Triton and numba. Both build an `LLM`, ask for one token, and then
serve the same kind of crowd several times. Importing torch is not counted, because it always takes the same time.

With --serve, it also measures streams over HTTP: a server that has just become ready, and one crowd after another, each
stream with one request.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.http_cost import CLIENTS, Load, serving, through_http
from gradus.bench.run.script import ran

ROUNDS, PROMPT, ANSWER, STREAMS = 4, 64, 128, 64
MODELS = ("random:qwen3-0.6b", "random:gpt2-124m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"may be repeated; {', '.join(MODELS)} by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=256, help="of a crowd")
    parser.add_argument("--serve", metavar="MODEL", help="serve streams over HTTP as well, with this model")
    parser.add_argument("--streams", type=int, default=STREAMS, help="of a crowd over HTTP")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.model[0], asked.device, asked.requests)))
        return
    served = [over_http(asked.serve, asked.device, asked.streams)] if asked.serve else []
    rows = [row for model in asked.model or MODELS for row in both(model, asked.device, asked.requests)]
    from gradus.bench.measure.fingerprint import commit, fingerprint  # here: children import what they measure
    from gradus.models.precision import resolve_device

    machine = fingerprint(resolve_device(asked.device), quick=True)
    found = {"commit": asked.commit or commit(), **machine, "requests": asked.requests, "rows": rows, "served": served}
    text = json.dumps(found, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n")
    print(text)


def both(model: str, device: str, requests: int) -> list[dict[str, Any]]:
    """Measure without compiled kernels, then with them."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--child", "--model", model, "--device", device]
        command += ["--requests", str(requests)]
        environment = os.environ | {"TRITON_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache}
        rows = []
        for kernels in ("not cached", "cached"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{model}, kernels {kernels}: {done.stderr.strip()[-2000:]}")
            rows.append({"model": model, "kernels": kernels, **json.loads(done.stdout.splitlines()[-1])})
        return rows


def measure(model: str, device: str, requests: int) -> dict[str, Any]:
    """Measure, in a separate process, seconds from `LLM(…)` to its first token, and tokens per second by round."""
    import torch

    from gradus import LLM, SamplingParams

    started = time.perf_counter()
    llm = LLM(model, device=device, dtype="bfloat16")
    built = time.perf_counter() - started
    next(iter(llm.stream([1, 2, 3, 4], SamplingParams(max_tokens=2, ignore_eos=True))))
    first_token = time.perf_counter() - started
    rates = []
    for number in range(ROUNDS):
        draw = random.Random(number)
        prompts = [[draw.randrange(1, llm.limits.vocab_size) for _ in range(PROMPT)] for _ in range(requests)]
        params = SamplingParams(max_tokens=ANSWER, temperature=1.0, seed=number, ignore_eos=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begun = time.perf_counter()
        done = llm.generate(prompts, params)
        rates.append(round(sum(len(each.token_ids) for each in done) / (time.perf_counter() - begun), 1))
    return {"built_s": round(built, 2), "first_token_s": round(first_token, 2), "round_tok_s": rates}


def over_http(model: str, device: str, streams: int) -> dict[str, Any]:
    """Measure from a server's ready line on: tokens per second and the 99th percentile of TTFT by round."""
    from gradus.models.shapes import SHAPES

    vocab_size = SHAPES[model.removeprefix("random:")].vocab_size
    load = Load(streams, 1, PROMPT, ANSWER)
    with (
        serving({"model": model, "device": device}) as server,
        ProcessPoolExecutor(CLIENTS, get_context("spawn")) as pool,
    ):
        list(pool.map(time.sleep, [0.5] * CLIENTS))  # so that every client process has started
        found = [
            through_http(pool, server, load, load.prompts(vocab_size, seed=number)).summary(load)
            for number in range(ROUNDS)
        ]
    rates = [round(load.streams * ANSWER / one["seconds"], 1) for one in found]
    return {
        "model": model,
        "streams": streams,
        "round_tok_s": rates,
        "ttft_ms_p99": [one["ttft_ms"]["p99"] for one in found],
    }


if __name__ == "__main__":
    sys.exit(ran(main))
