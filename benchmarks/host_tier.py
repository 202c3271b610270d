"""Measure what host memory behind a GPU's cache gains and costs: a prefix that comes back, and a load that never hits.

    python benchmarks/host_tier.py [--models llama-3.2-1b,llama-3.1-8b:first_token] [--profile] [--out FILE.json]
                                   [--quick]

For each model, with random weights, all parts or those named after a colon, with a plus between them:

- first_token: the time to the first token of a session of 10,000 tokens that is computed, that the GPU's cache has,
  that host memory has, and that files have (in the system's page cache): medians of five, each after all else ended.
- throughput: tokens per second of prompts that share nothing, with a cache much smaller than all of them, so that every
  page is copied out and none comes back: engines with and without host memory in turns, A-B-B-A.
- correct: whether greedy answers are the same after their prefixes were evicted by other prompts and came back, with
  the cache in bfloat16 and in fp8.

The first part's engine is the third's too, as engines take most of the time. Results are written after each model. The
script fails if answers differ. --profile prints, after the samples, which functions of the host a first token and a
turn of the throughput spend their time in.

--quick runs all of it on a CPU with a tiny model, where a copy is done when its call returns: it shows that the script
works, not how fast a GPU is.
"""

import argparse
import cProfile
import json
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from gradus import LLM, SamplingParams
from gradus.assembly import prefixes
from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.script import ran
from gradus.cache.host import tier
from gradus.cache.host.tier import HostTier
from gradus.cache.paged import PagedCache
from gradus.models.precision import resolve_device

FIRST = SamplingParams(max_tokens=1, ignore_eos=True)
REPEATS = 5
SOURCES = "computed", "gpu", "host", "disk"  # where a session comes from
PARTS = "first_token", "throughput", "correct"


@dataclass(frozen=True)
class Sizes:
    """session: tokens of a prefix that comes back. cache: tokens of the GPU's cache. prompts: of the throughput, with
    `length` and `answer` tokens each. host: GiB."""

    session: int = 10_000
    cache: int = 32_768
    prompts: int = 64
    length: int = 2_000
    answer: int = 32
    host: float = 12.0

    def settings(self, device: str, sequences: int) -> dict[str, Any]:
        """Settings of an engine. A graph is captured for few `sequences` in less time."""
        context = max(self.session, self.length) + 64
        return {"device": device, "context_length": context, "cache_tokens": self.cache, "max_sequences": sequences}


QUICK = Sizes(session=300, cache=416, prompts=3, length=260, answer=2, host=0.05)


def text(seed: int, length: int, vocabulary: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, vocabulary) for _ in range(length)]


class Bench:
    """An engine with its second tier, and prompts for it."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.vocabulary = llm.limits.vocab_size
        parts = llm.core.parts
        assert parts is not None
        self.cache: PagedCache = parts.scheduler.cache

    @property
    def host_hits(self) -> int:
        """Positions that host memory has given back, files included."""
        usage = self.cache.usage().host
        assert usage is not None
        return usage.hit_positions

    @property
    def tier(self) -> HostTier:
        assert isinstance(self.cache.tier, HostTier)
        return self.cache.tier

    def first_token(self, prompt: list[int], cached: bool) -> float:
        """Milliseconds to the first token. Raises AssertionError if its prefix was hit, or not, against `cached`."""
        (done,) = self.llm.generate([prompt], FIRST)
        size = self.cache.page_size
        assert done.cached_tokens == (cached and (len(prompt) - 1) // size * size), f"{done.cached_tokens} were cached"
        assert done.timings.ttft_s is not None
        return 1e3 * done.timings.ttft_s

    def prepare(self, source: str) -> None:
        """Let a session be found in `source` and not before it, with all copies and files of earlier ones done."""
        own = self.tier
        self.cache._keep_ahead(own, 2 * self.cache.pool.count)
        while own._out or ((usage := own.disk_usage) and usage.queued):
            time.sleep(1e-3)
            self.cache.settle()
        if source != "gpu":
            self.cache.forget()
        if source in ("computed", "disk"):
            for key in own.slots.by_use():
                own.slots.remove(key)


def first_token(bench: Bench, sizes: Sizes, profiled: bool = False) -> dict[str, Any]:
    """Time to the first token, in milliseconds, by where a session comes from, and the samples."""
    bench.first_token(text(1_000, sizes.session, bench.vocabulary), cached=False)  # kernels run warm
    samples: dict[str, list[float]] = {name: [] for name in SOURCES}
    for repeat in range(REPEATS):
        prompt = text(repeat, sizes.session, bench.vocabulary)
        for source in SOURCES:
            bench.prepare(source)
            samples[source].append(bench.first_token(prompt, cached=source != "computed"))
    usage = bench.cache.usage()
    assert usage.host is not None and usage.disk is not None
    medians = {name: round(median(each), 2) for name, each in samples.items()}
    mib = sizes.session * usage.host.page_bytes / bench.cache.page_size / 2**20
    if profiled:
        for source in SOURCES[1:]:
            bench.prepare(source)
            with profile(f"first token, {source}"):
                bench.first_token(prompt, cached=True)
    return {
        "session_mib": round(mib, 1),
        "ttft_ms": medians,
        "of_computed": {name: round(each / medians["computed"], 3) for name, each in medians.items()},
        "samples_ms": {name: [round(one, 2) for one in each] for name, each in samples.items()},
        "lost": [usage.host.lost, usage.disk.lost],
    }


@contextmanager
def profile(title: str) -> Iterator[None]:
    """Print where the host's time goes in this context, by function."""
    profiler = cProfile.Profile()
    with profiler:
        yield
    print(f"-- {title}", file=sys.stderr)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(30)


def throughput(model: str, sizes: Sizes, device: str, profiled: bool = False) -> dict[str, Any]:
    """Tokens per second, prompts included, with and without host memory, in turns, where nothing is ever hit."""
    settings, counted = sizes.settings(device, sequences=32), sizes.prompts * (sizes.length + sizes.answer)
    with LLM(model, **settings) as without, LLM(model, **settings, host_cache=sizes.host) as with_host:
        benches, rates = {"off": Bench(without), "on": Bench(with_host)}, {"off": list[float](), "on": list[float]()}
        seeds = iter(range(10_000, 1 << 30))
        for turn, name in enumerate(["off", "on", *["on", "off", "off", "on"] * 3]):
            bench = benches[name]
            prompts = [text(next(seeds), sizes.length, bench.vocabulary) for _ in range(sizes.prompts)]
            began = time.perf_counter()
            done = bench.llm.generate(prompts, SamplingParams(max_tokens=sizes.answer, ignore_eos=True))
            if turn > 1:  # each one's first fills its cache
                rates[name].append(counted / (time.perf_counter() - began))
            assert not any(each.cached_tokens for each in done), "nothing is ever hit"
        if profiled:
            prompts = [text(next(seeds), sizes.length, bench.vocabulary) for _ in range(sizes.prompts)]
            with profile("throughput, with host memory"):
                benches["on"].llm.generate(prompts, SamplingParams(max_tokens=sizes.answer, ignore_eos=True))
        usage = benches["on"].cache.usage().host
        assert usage is not None and usage.copied_pages, "every page is copied out"
        return {
            "tokens_per_s": {name: round(median(each)) for name, each in rates.items()},
            "on_over_off": round(median(rates["on"]) / median(rates["off"]), 4),
            "samples": {name: [round(one) for one in each] for name, each in rates.items()},
            "copied_pages": usage.copied_pages,
            "lost_pages": usage.lost,
        }


def correct(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """Whether answers stay the same once other prompts have evicted their prefixes and host memory has given them
    back."""
    greedy, before = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True), bench.host_hits
    prompts, found = [text(seed, sizes.session // 2, bench.vocabulary) for seed in range(2_000, 2_003)], []
    for _ in range(2):
        for prompt in prompts:
            bench.llm.generate([prompt], greedy)  # the second time, a hit: so both answers are computed alike
            (hit,) = bench.llm.generate([prompt], greedy)
            found.append((hit.token_ids, hit.cached_tokens))
        for seed in range(100, 100 + 2 * sizes.cache // sizes.session):
            bench.llm.generate([text(seed, sizes.session, bench.vocabulary)], FIRST)  # evicts all of them
    came_back = bench.host_hits - before
    assert came_back >= 3 * (sizes.session // 2 - 2 * bench.cache.page_size)
    bench.llm.check()
    return {"same": found[:3] == found[3:], "came_back": came_back}


@contextmanager
def allowed_on(device: str) -> Iterator[None]:
    """Let the script run on a CPU, which users may not do, as there is nothing to gain; and let files take their
    time."""
    if device == "cuda":
        yield
        return
    with patch.object(prefixes, "check_host_cache", lambda options, device: None), patch.object(tier, "GRACE_S", 60.0):
        yield


@contextmanager
def engine(model: str, sizes: Sizes, device: str, **settings: Any) -> Iterator[Bench]:
    with LLM(model, **sizes.settings(device, sequences=2), host_cache=sizes.host, **settings) as llm:
        yield Bench(llm)


def measured(model: str, parts: Sequence[str], sizes: Sizes, device: str, profiled: bool) -> dict[str, Any]:
    """All that was asked for of one model, and the seconds that each step of it took."""
    row, took, name = dict[str, Any](model=model), dict[str, float](), f"random:{model}"
    clock = Clock(took)
    if "first_token" in parts or "correct" in parts:
        with tempfile.TemporaryDirectory() as folder:
            files = {"prefix_dir": str(Path(folder) / "p"), "prefix_dir_size": 4 * sizes.host}
            with engine(name, sizes, device, **files) as bench:
                clock.took("start")
                if "first_token" in parts:
                    row["first_token"] = first_token(bench, sizes, profiled)
                    clock.took("first_token")
                if "correct" in parts:
                    row["correct"] = {"auto": correct(bench, sizes)}
                    clock.took("correct")
    if "throughput" in parts:
        row["throughput"] = throughput(name, sizes, device, profiled)
        clock.took("throughput")
    if "correct" in parts:
        with engine(name, sizes, device, kv_dtype="fp8") as bench:
            row["correct"]["fp8"] = correct(bench, sizes)
        clock.took("correct_fp8")
    return row | {"took_s": took}


class Clock:
    """Seconds since the last step, by step."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self._last = seconds, time.perf_counter()

    def took(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step], self._last = round(now - self._last, 1), now


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-3.2-1b,llama-3.1-8b:first_token")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    device, sizes = ("cpu", QUICK) if given.quick else ("cuda", Sizes())
    models = ["tiny-llama"] if given.quick else given.models.split(",")
    named = [model.partition(":") for model in models]
    asked = [(model, parts.split("+") if parts else PARTS) for model, _, parts in named]
    if unknown := {part for _, parts in asked for part in parts}.difference(PARTS):
        parser.error(f"--models: unknown parts {', '.join(sorted(unknown))}: name any of {', '.join(PARTS)}")
    resolve_device(device)  # says in one line if there is no GPU
    found: dict[str, Any] = {"commit": commit(), "torch": torch.__version__, "rows": []}
    found["device"] = "cpu" if given.quick else torch.cuda.get_device_name()
    with allowed_on(device):
        for model, parts in asked:
            row = measured(model, parts, sizes, device, given.profile)
            print(json.dumps(row), flush=True)
            found["rows"].append(row)
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    answers = [kept["same"] for row in found["rows"] for kept in row.get("correct", {}).values()]
    return 0 if all(answers) else 1


if __name__ == "__main__":
    sys.exit(ran(main))
