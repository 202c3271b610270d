"""Measure what long contexts take in memory: the pages of each shape, and an engine that reads a long prompt.

    PYTHONPATH=src:. python3 benchmarks/context_memory.py --out "$OUT"/context_memory.json
    PYTHONPATH=src:. python3 benchmarks/context_memory.py --device cpu --quick --out my-reports/context_memory.json

Pages: for each shape, format and length, the storage of exactly the context's pages is allocated, and the memory that
the device has less of is compared with the formula (docs/models.md, "What a long context costs"). A CPU counts what the
process holds once all pages have been written to.

Engine: a shape with random weights, 256 sequences and its whole context. Its plan is compared with what it holds once
it stands, and with the peak while it reads a prompt of nearly the whole context; the host's memory is measured too.

`--quick`: a few small shapes, and a tiny engine.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.bench.measure.fingerprint import fingerprint
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.cli.families import CONTEXTS
from gradus.config.options import DEFAULT_PAGE_SIZE
from gradus.engine.request import SamplingParams
from gradus.execution.memory.device_memory import readable
from gradus.execution.memory.footprint import KV_BYTES, context_bytes, context_pages
from gradus.loading import open_checkpoint
from gradus.models import SHAPES
from gradus.models.precision import resolve_device
from gradus.server.config import ServerConfig
from gradus.server.engine.loading import keywords, planned
from gradus.text.llm import LLM

STORAGES = {"bfloat16": PagedStorage, "fp8": Fp8Storage}
QUICK_SHAPES = ("gemma3-270m", "gpt-oss-20b")
QUICK_LENGTHS = (8192, 16_384)
ANSWER = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="llama-3.2-1b", help="the engine's shape")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    pages = list(_pages(device, quick=asked.quick))
    print(_table(pages))
    engine = _engine("tiny-llama" if asked.quick else asked.engine, device, sequences=8 if asked.quick else 256)
    print(json.dumps(engine, indent=2))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"hardware": fingerprint(device, quick=asked.quick), "pages": pages, "engine": engine}
    asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


# -- pages -------------------------------------------------------------------------------------------------------------


def _pages(device: torch.device, *, quick: bool) -> Iterator[dict[str, Any]]:
    _measured("bfloat16", SHAPES["tiny-llama"], 64, device)  # what the first allocation takes besides
    shapes = {name: shape for name, shape in SHAPES.items() if not name.startswith("tiny-")}
    for name, shape in shapes.items():
        lengths = QUICK_LENGTHS if quick else CONTEXTS.values()
        for kind, per in KV_BYTES.items():
            for tokens in lengths if not quick or name in QUICK_SHAPES else ():
                if tokens <= shape.context_length:
                    pages = context_pages(shape, tokens)
                    measured = _measured(kind, shape, pages, device) * pages // (pages + 1)  # page 0 is nobody's
                    formula = context_bytes(shape, tokens, *per)
                    yield {"shape": name, "format": kind, "tokens": tokens, "formula": formula, "measured": measured}


def _measured(kind: str, shape: Any, pages: int, device: torch.device) -> int:
    """Bytes of the device that storage of these pages, and page 0, takes."""
    before = held(device)
    storage = STORAGES[kind](shape, pages, DEFAULT_PAGE_SIZE, torch.bfloat16, device)
    if device.type == "cpu":
        for tensor in storage.tensors:
            tensor.view(torch.uint8).fill_(1)
    taken = held(device) - before
    del storage
    gc.collect()
    return taken


def held(device: torch.device) -> int:
    """Bytes that this process holds: of a GPU as the driver counts them, since nothing else runs there."""
    if device.type == "cpu":
        return int(psutil.Process().memory_info().rss)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            row["shape"],
            row["format"],
            f"{row['tokens']:,}",
            readable(row["formula"]),
            readable(row["measured"]),
            f"{row['measured'] / row['formula']:.3f}",
        ]
        for row in rows
    ]
    return markdown(["shape", "format", "tokens", "formula", "measured", "ratio"], cells)


# -- an engine ---------------------------------------------------------------------------------------------------------


def _engine(shape: str, device: torch.device, *, sequences: int) -> dict[str, Any]:
    """Plan, build and run one engine. Bytes; `resident` is the host's memory."""
    name, process = f"random:{shape}", psutil.Process()
    settings = ServerConfig(model=name, device=str(device)).merge({"max_sequences": sequences})
    plan, _ = planned(settings, open_checkpoint(name))
    at_first, resident = held(device), process.memory_info().rss
    with LLM(**keywords(settings)) as llm:  # with a server's defaults, as it is planned
        built, built_resident = held(device), process.memory_info().rss
        tokens = llm.limits.context_length - ANSWER
        prompt = [number % llm.limits.vocab_size for number in range(tokens)]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        began, most = time.perf_counter(), built
        llm.submit(prompt, SamplingParams(max_tokens=ANSWER, ignore_eos=True))
        while llm.has_work:
            llm.step()
            most = max(most, process.memory_info().rss if device.type == "cpu" else _in_use(device))
        seconds = time.perf_counter() - began
        found = {
            "shape": shape,
            "sessions": llm.sequences_by_length,
            "planned": {
                part: getattr(plan, f"{part}_bytes") for part in ("weight", "cache", "step", "graph", "table", "usable")
            },
            "held": built - at_first,
            "most_while_reading": most - at_first,
            "torch_peak": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            "prompt_tokens": tokens,
            "seconds": seconds,
            "resident_built": built_resident - resident,
            "resident_read": process.memory_info().rss - resident,
        }
    return found


def _in_use(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    return total - free


if __name__ == "__main__":
    sys.exit(ran(main))
