"""Measure p05's tiers: the first token of a session that is computed, fetched from host memory, or found in the pool.

    PYTHONPATH=src:. python3 benchmarks/lessons/tiers_lesson.py --out benchmarks/lessons/tiers_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/tiers_lesson.py --device cuda --dtype bfloat16 \\
        --model random:llama-3.2-1b --lengths 2000 8000 --out FILE
    PYTHONPATH=src:. python3 benchmarks/lessons/tiers_lesson.py --quick --out FILE

The three take turns, and each cell is a median. Random weights will do: only the time is read. On a CPU, one thread
computes and its own seconds count, which other work on the machine hardly changes.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import median, significant
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p05_prefix_cache import tiers
from phases.p05_prefix_cache.cache import PrefixCache

MODEL, LENGTHS, ROUNDS, PAGE = "random:smollm2-135m", (250, 500, 1000, 2000), 5, 16
QUICK = {"model": "random:tiny-llama", "lengths": (100,), "rounds": 2}
WAYS = ("computed", "fetched", "found")


def engine_of(model: Model, length: int) -> Engine:
    """A pool and host memory for one session each."""
    pages = -(-(length + 2) // PAGE)
    limits = ModelLimits(model.config.vocab_size, min(length + 2, model.config.context_length), ())
    return tiers.build(model, EngineOptions(limits, 1, page_size=PAGE, cache_tokens=pages * PAGE), host_pages=pages)


def first_token(engine: Engine, prompt: Sequence[int], clock: Callable[[], float]) -> float:
    """Return the seconds from a request to its only token, which is on the host then."""
    request = Request.create("session", prompt, SamplingParams(max_tokens=1, ignore_eos=True), engine.limits)
    begin = clock()
    engine.submit(request)
    while engine.has_work:
        engine.step()
    return clock() - begin


def prepare(cache: Any, way: str) -> None:
    """Bring the session's pages to where `way` finds them."""
    if way == "fetched":
        PrefixCache.forget(cache)  # evicts all pages, so they move down
    elif way == "computed":
        cache.forget()


def measured(model: Model, length: int, rounds: int) -> dict[str, Any]:
    engine = engine_of(model, length)
    cache = engine.scheduler.cache
    assert isinstance(cache, tiers.TieredCache)
    clock = time.process_time if model.device.type == "cpu" else time.perf_counter
    prompt = [(7 * i + 3) % 300 for i in range(length)]
    for _ in range(2):
        first_token(engine, prompt, clock)
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            prepare(cache, way)
            samples[way].append(significant(first_token(engine, prompt, clock)))
            cache.check()
    page = sum(layer[0].nbytes for layer in (*cache.storage.keys, *cache.storage.values))
    moved = (length - 1) // PAGE * page
    return {"tokens": length, "bytes": moved} | {way: median(samples[way]) for way in WAYS} | {"samples": samples}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a tiny model and one length, to see that it runs")
    asked = parser.parse_args()
    vars(asked).update(QUICK if asked.quick else {})
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device(asked.device)
    torch.set_num_threads(1)
    model = load_model(open_checkpoint(asked.model), dtype=getattr(torch, asked.dtype), device=device)
    found: dict[str, Any] = {
        "commit": commit(),
        **fingerprint(device, quick=True),
        "model": asked.model,
        "dtype": asked.dtype,
        "rows": [],
    }
    for length in asked.lengths:
        found["rows"].append(measured(model, length, asked.rounds))
        print({name: shown for name, shown in found["rows"][-1].items() if name != "samples"}, flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
