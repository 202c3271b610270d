"""Measure what host memory behind a GPU's cache gains and costs: a prefix that comes back, and a load that never hits.

    python benchmarks/host_tier.py [--models llama-3.2-1b,llama-3.1-8b] [--out FILE.json] [--quick]

For each model, with random weights:

- first_token: the time to the first token of a session of 10,000 tokens that is computed, that the GPU's cache has,
  that host memory has, and that files have (in the system's page cache): medians of five, each after all else ended.
- throughput: tokens per second of prompts that share nothing, with a cache much smaller than all of them, so that every
  page is copied out and none comes back: engines with and without host memory in turns, A-B-B-A.
- correct: whether greedy answers are the same after their prefixes were evicted by other prompts and came back, with
  the cache in bfloat16 and in fp8.

--quick runs all of it on a CPU with a tiny model, where a copy is done when its call returns: it shows that the script
works, not how fast a GPU is.
"""

import argparse
import json
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
from gradus.bench.run.script import ran
from gradus.cache.host import tier
from gradus.cache.host.tier import HostTier
from gradus.cache.paged import PagedCache

FIRST = SamplingParams(max_tokens=1, ignore_eos=True)
REPEATS = 5


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

    def settings(self, device: str) -> dict[str, Any]:
        context = max(self.session, self.length) + 64
        return {"device": device, "context_length": context, "cache_tokens": self.cache, "max_sequences": 32}


def without_graphs(device: str) -> dict[str, Any]:
    """Leave out what long prompts do not use, and an engine takes long to capture."""
    return {"switch_off": ("graphs",)} if device == "cuda" else {}


QUICK = Sizes(session=300, cache=416, prompts=4, length=100, answer=2, host=0.05)


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

    def give_up(self, *, host: bool) -> None:
        """Let the cache copy and forget all that it has, and host memory too, if `host` says so."""
        own = self.tier
        self.cache._keep_ahead(own, 2 * self.cache.pool.count)
        self._wait(lambda: bool(own._out))
        self._wait(lambda: bool((usage := own.disk_usage) and usage.queued))
        self.cache.forget()
        if host:
            for name in own.slots.names():
                own.slots.remove(name)

    def _wait(self, busy: Any) -> None:
        while busy():
            time.sleep(1e-3)
            self.cache.settle()


def first_token(model: str, sizes: Sizes, device: str, folder: Path) -> dict[str, Any]:
    """Time to the first token, in milliseconds, and its samples; and the seconds that the engine took to start."""
    settings = sizes.settings(device) | without_graphs(device)
    settings |= {"host_cache": sizes.host, "prefix_dir": str(folder)}
    began = time.perf_counter()
    with LLM(model, **settings, prefix_dir_size=4 * sizes.host) as llm:
        started, bench = time.perf_counter() - began, Bench(llm)
        bench.first_token(text(1_000, sizes.session, bench.vocabulary), cached=False)  # kernels run warm
        samples: dict[str, list[float]] = {"computed": [], "gpu": [], "host": [], "disk": []}
        for repeat in range(REPEATS):
            prompt = text(repeat, sizes.session, bench.vocabulary)
            samples["computed"].append(bench.first_token(prompt, cached=False))
            samples["gpu"].append(bench.first_token(prompt, cached=True))
            bench.give_up(host=False)
            samples["host"].append(bench.first_token(prompt, cached=True))
            bench.give_up(host=True)
            samples["disk"].append(bench.first_token(prompt, cached=True))
            bench.give_up(host=True)
        usage = bench.cache.usage()
        assert usage.host is not None and usage.disk is not None
        medians = {name: round(median(each), 2) for name, each in samples.items()}
        return {
            "start_s": round(started, 1),
            "session_mib": round(sizes.session * usage.host.page_bytes / bench.cache.page_size / 2**20, 1),
            "ttft_ms": medians,
            "of_computed": {name: round(each / medians["computed"], 3) for name, each in medians.items()},
            "samples_ms": {name: [round(one, 2) for one in each] for name, each in samples.items()},
            "lost": [usage.host.lost, usage.disk.lost],
        }


def throughput(model: str, sizes: Sizes, device: str) -> dict[str, Any]:
    """Tokens per second, prompts included, with and without host memory, in turns, where nothing is ever hit."""
    settings, counted = sizes.settings(device), sizes.prompts * (sizes.length + sizes.answer)
    with LLM(model, **settings) as without, LLM(model, **settings, host_cache=sizes.host) as with_host:
        benches, rates = {"off": Bench(without), "on": Bench(with_host)}, {"off": list[float](), "on": list[float]()}
        seeds = iter(range(10_000, 1 << 30))
        for turn, name in enumerate(["off", "on", *["on", "off", "off", "on"] * 2]):
            bench = benches[name]
            prompts = [text(next(seeds), sizes.length, bench.vocabulary) for _ in range(sizes.prompts)]
            began = time.perf_counter()
            done = bench.llm.generate(prompts, SamplingParams(max_tokens=sizes.answer, ignore_eos=True))
            if turn > 1:  # each one's first fills its cache
                rates[name].append(counted / (time.perf_counter() - began))
            assert not any(each.cached_tokens for each in done), "nothing is ever hit"
        usage = benches["on"].cache.usage().host
        assert usage is not None
        return {
            "tokens_per_s": {name: round(median(each)) for name, each in rates.items()},
            "on_over_off": round(median(rates["on"]) / median(rates["off"]), 4),
            "samples": {name: [round(one) for one in each] for name, each in rates.items()},
            "copied_pages": usage.copied_pages,
            "lost_pages": usage.lost,
        }


def correct(model: str, sizes: Sizes, device: str, kv_dtype: str) -> dict[str, Any]:
    """Whether answers stay the same once other prompts have evicted their prefixes and host memory has given them
    back."""
    settings = sizes.settings(device) | without_graphs(device) | {"host_cache": sizes.host, "kv_dtype": kv_dtype}
    greedy = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    with LLM(model, **settings) as llm:
        bench = Bench(llm)
        prompts = [text(seed, sizes.session // 2, bench.vocabulary) for seed in range(3)]
        found = []
        for _ in range(2):
            for prompt in prompts:
                llm.generate([prompt], greedy)  # the second time, a hit: so both answers are computed alike
                (hit,) = llm.generate([prompt], greedy)
                found.append((hit.token_ids, hit.cached_tokens))
            for seed in range(100, 100 + 2 * sizes.cache // sizes.session):
                llm.generate([text(seed, sizes.session, bench.vocabulary)], FIRST)  # evicts all of them
        usage = bench.cache.usage().host
        assert usage is not None and usage.hit_positions >= 3 * (sizes.session // 2 - 2 * bench.cache.page_size)
        llm.check()
        return {"kv_dtype": kv_dtype, "same": found[:3] == found[3:], "came_back": usage.hit_positions}


@contextmanager
def allowed_on(device: str) -> Iterator[None]:
    """Let the script run on a CPU, which users may not do, as there is nothing to gain; and let files take their
    time."""
    if device == "cuda":
        yield
        return
    with patch.object(prefixes, "check_host_cache", lambda options, device: None), patch.object(tier, "GRACE_S", 60.0):
        yield


def measured(models: Sequence[str], sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    for model in models:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            row = {"model": model, "first_token": first_token(f"random:{model}", sizes, device, Path(folder) / "p")}
        row["throughput"] = throughput(f"random:{model}", sizes, device)
        row["correct"] = [correct(f"random:{model}", sizes, device, kept) for kept in ("auto", "fp8")]
        yield row | {"took_s": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-3.2-1b,llama-3.1-8b")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    device, sizes = ("cpu", QUICK) if given.quick else ("cuda", Sizes())
    models = ["tiny-llama"] if given.quick else given.models.split(",")
    found: dict[str, Any] = {"torch": torch.__version__, "rows": []}
    found["device"] = "cpu" if given.quick else torch.cuda.get_device_name()
    with allowed_on(device):
        for row in measured(models, sizes, device):
            print(json.dumps(row), flush=True)
            found["rows"].append(row)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
