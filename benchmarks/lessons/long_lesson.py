"""Measure what a long prompt costs: its chunks by their position on a CPU, whole prompts by their length on a GPU.

    PYTHONPATH=src:. python3 benchmarks/lessons/long_lesson.py --parts steps --out benchmarks/lessons/long_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/long_lesson.py --parts prompts --device cuda --out …
    PYTHONPATH=src:. python3 benchmarks/lessons/long_lesson.py --quick --out /tmp/long_lesson.json

`steps` runs one prompt through p06's engine, in chunks of equal length and cut by p09's `cut`, in turns. It counts the
processor's seconds of one thread, which other work on the machine hardly changes. `prompts` times
the final engine from `LLM.generate` to the first token, one prompt at a time, each of new tokens. A row replaces the
engine's earlier one for that model; parts that are not asked for stay as the file has them. `--quick` runs all parts
with a tiny model.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import torch

from gradus import LLM, SamplingParams, phases
from gradus.bench.measure import gpu
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import median, significant
from gradus.config.options import EngineOptions
from gradus.engine.request import ModelLimits, Request
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p09_triton_attention.chunks import Sizes, cut, flops

PHASE, MODEL, TINY = "p06", "random:smollm2-135m", "random:tiny-llama"
PROMPT, COUNT, RUNS = 6000, 24, 3  # tokens, the chunks that they are cut into, and how often
MODELS, LENGTHS = ("llama-3.2-1b", "llama-3.1-8b"), (8_000, 32_000, 64_000, 120_000)
ENGINE = "Gradus"
Chunks = list[tuple[int, int]]


# -- chunks by their position ------------------------------------------------------------------------------------------


def ways(sizes: Sizes, prompt: int, count: int) -> dict[str, Chunks]:
    """Cut the prompt into `count` chunks of equal length, and by the FLOPs that these have on average."""
    length = -(-prompt // count)
    equal = [(start, min(length, prompt - start)) for start in range(0, prompt, length)]
    return {"equal": equal, "cut": cut(sizes, 0, prompt, -(-flops(sizes, 0, prompt) // count))}


def run(model: Model, chunks: Chunks, seed: int) -> list[float]:
    """Run a prompt in these chunks, one per step. Returns the processor's seconds of each step."""
    prompt = sum(count for _, count in chunks)
    limits = ModelLimits(model.config.vocab_size, prompt + 1)
    options = EngineOptions(limits, max_sequences=1, token_budget=prompt)
    engine: Any = phases.load(PHASE).build(model, options)
    draw = Random(seed)
    tokens = [draw.randrange(limits.vocab_size) for _ in range(prompt)]
    engine.submit(Request.create("long", tokens, SamplingParams(max_tokens=1, ignore_eos=True), limits))
    taken, outputs = [], []
    for start, count in chunks:
        assert start == engine.metrics().rows, "a step is a chunk"
        engine.scheduler.token_budget = count
        began = time.process_time()
        outputs += engine.step()
        taken.append(time.process_time() - began)
    assert len(outputs) == 1 and not engine.has_work, "the last chunk is sampled from"
    return taken


@torch.inference_mode()
def steps(name: str, prompt: int, count: int, runs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = load_model(open_checkpoint(name), dtype=torch.float32, device="cpu")
    found = ways(Sizes.of(model.config), prompt, count)
    run(model, found["equal"][:2], 0)
    taken: dict[str, list[list[float]]] = {way: [] for way in found}
    for seed in range(runs):
        for way, chunks in found.items():
            taken[way].append([significant(one) for one in run(model, chunks, seed)])
            print(f"{way}: {sum(taken[way][-1]):.1f} s", flush=True)
    return {way: {"chunks": chunks, "seconds": taken[way]} for way, chunks in found.items()}


# -- prompts by their length -------------------------------------------------------------------------------------------


def prompts(name: str, lengths: tuple[int, ...], device: str, runs: int) -> dict[str, Any]:
    """Time prompts from `generate` to the first token. `tok_s` has the tokens of a prompt over the median seconds."""
    row: dict[str, Any] = {"engine": ENGINE, "model": name.removeprefix("random:")}
    row["gpu"] = gpu.describe(0)["gpu"] if device == "cuda" else "none"
    dtype = "bfloat16" if device == "cuda" else "float32"
    one, draw = SamplingParams(max_tokens=1, ignore_eos=True), Random(name)
    with LLM(name, device=device, dtype=dtype, context_length=max(lengths) + 16, max_sequences=1) as llm:

        def seconds(length: int) -> float:
            tokens = [draw.randrange(llm.config.vocab_size) for _ in range(length)]
            began = time.perf_counter()
            llm.generate([tokens], one)
            return significant(time.perf_counter() - began)

        for length in (max(lengths), min(lengths)):
            seconds(length)
        row["seconds"] = {str(length): [seconds(length) for _ in range(runs)] for length in lengths}
    row["tok_s"] = {length: significant(int(length) / median(taken)) for length, taken in row["seconds"].items()}
    print(row, flush=True)
    return row


def replaced(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Put a row in the place of the same engine's earlier one for the same model, or behind all others."""
    place = [(row["engine"], row["model"]) for row in rows]
    known = (new["engine"], new["model"])
    return [new if each == known else row for each, row in zip(place, rows, strict=True)] + [new] * (known not in place)


PARTS = ("steps", "prompts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="shapes, of `prompts`")
    parser.add_argument("--device", default="cpu", help="of `prompts`: cpu or cuda (cpu)")
    parser.add_argument("--runs", type=int, help=f"of each prompt ({RUNS} in `steps`, 3 in `prompts`)")
    parser.add_argument("--quick", action="store_true", help="all of it with a tiny model, once")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.is_file() else {}
    if "steps" in asked.parts:
        name, size = (TINY, (120, 4, 1)) if asked.quick else (MODEL, (PROMPT, COUNT, asked.runs or RUNS))
        found |= {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True)}
        found |= {"phase": PHASE, "model": name.removeprefix("random:"), "steps": steps(name, *size)}
        write(asked.out, found)
    if "prompts" in asked.parts:
        for shape in [TINY] if asked.quick else [f"random:{model}" for model in asked.models]:
            lengths = (40, 80, 160) if asked.quick else LENGTHS
            row = prompts(shape, lengths, asked.device, 1 if asked.quick else asked.runs or 3)
            row["commit"] = asked.commit or commit()
            found["prompts"] = replaced(found.get("prompts", []), row)
            write(asked.out, found)


def write(out: Path, found: dict[str, Any]) -> None:
    out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
