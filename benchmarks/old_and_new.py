"""Is a batch that asks for nothing new as fast as before? Two checkouts in turns, on the same token ids.

    git worktree add /tmp/old COMMIT
    PYTHONPATH=src:. python3 benchmarks/old_and_new.py --old /tmp/old --out "$OUT"/old_and_new.json

Each block is a process of its own: this checkout, the old one, and this one again, so that drift shows as a difference
between the first and the last. A block builds one engine for all of a model's workloads and sends them through
`LLM.generate`, greedily, end-of-sequence ignored, with the prefix cache off; each runs whole before it is timed. A row
has the seconds of every run, and how many times as fast the new checkout is by the medians; `--must` is the least.
Results are written after each block.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gradus.bench.declare.suites import cache_for
from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.blocks import case_of, gradus, in_turns
from gradus.bench.run.script import ran
from gradus.bench.studies.beside import MAX_SEQUENCES, OURS, context_of
from gradus.bench.workloads import Workload, burst, single_stream
from gradus.models.shapes import SHAPES

OLD, NEW = "old", "new"
WORKLOADS: dict[str, dict[str, Workload]] = {
    "qwen3-0.6b": {
        "batch 64": burst(64, 512, 256),
        "batch 1": single_stream(32, 512),
        "batch 256": burst(256, 1024, 128),
    },
    "llama-3.2-1b": {"batch 64": burst(64, 512, 256)},
    "smollm2-135m": {"batch 8": burst(8, 64, 256), "batch 1": single_stream(32, 512)},
    "gpt2-124m": {"batch 64": burst(64, 32, 500)},
}
REPEATS, BLOCK_SECONDS, MUST = 5, 200, 0.995


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the older checkout")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1], help="by default, this one")
    parser.add_argument("--models", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--blocks", nargs="+", choices=(OLD, NEW), default=[NEW, OLD, NEW])
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed runs of each workload in each block")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--must", type=float, default=MUST)
    parser.add_argument("--commit")
    parser.add_argument("--old-commit", default="unknown")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    made: dict[str, Any] = {"commit": asked.commit or commit(), "old": asked.old_commit, "rows": []}
    done: list[dict[str, Any]] = []
    for model in asked.models:
        done += rows(made, model, asked, done)
    return 0 if all(row.get("new_over_old", 0) >= asked.must for row in made["rows"]) else 1


def rows(
    made: dict[str, Any], model: str, asked: argparse.Namespace, before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Run a model's blocks. Returns a row for each of its workloads."""
    sources = {OLD: asked.old, NEW: asked.new}
    sides = {f"{number}-{which}": gradus(BLOCK_SECONDS, sources[which] / "src")
             for number, which in enumerate(asked.blocks)}  # fmt: skip
    taken: dict[str, list[tuple[str, list[float]]]] = {name: [] for name in WORKLOADS[model]}
    found: list[dict[str, Any]] = []
    logs = asked.out.parent / "logs"
    question = described(model, asked.device, asked.repeats)
    for block, answer, _ in in_turns(sides, question, lambda name: logs / f"{model}-{name}.txt"):
        for name, case in answer.get("cases", {}).items():
            taken[name].append((block.partition("-")[2], [sample["seconds"] for sample in case["samples"]]))
        found = [row(model, name, blocks) for name, blocks in taken.items()]
        made |= answer.get("fingerprint", {})
        made["rows"] = [*before, *found]
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    for each in found:
        print(json.dumps({key: value for key, value in each.items() if key != "blocks"}), flush=True)
    return found


def described(model: str, device: str, repeats: int) -> dict[str, Any]:
    """Describe a model's workloads, the same for both checkouts (see `gradus.bench.run.block`)."""
    config, works = SHAPES[model], WORKLOADS[model]
    context = min(context_of(model), config.context_length)
    cases = [
        case_of(name, work.arrivals(config.vocab_size, context), {"temperature": 0.0}) for name, work in works.items()
    ]
    return {
        "model": f"random:{model}",
        "device": device,
        "dtype": "bfloat16",
        "contender": OURS,
        "interface": "LLM",
        "quantize": None,
        "kv_dtype": "auto",
        "context": context,
        "max_sequences": MAX_SEQUENCES,
        "cache_tokens": cache_for(works.values()),
        "repeats": repeats,
        "quick": True,
        "cases": cases,
    }


def row(model: str, name: str, blocks: Sequence[tuple[str, list[float]]]) -> dict[str, Any]:
    """Compare a workload's blocks, each with the seconds of its runs."""
    tokens = sum(job.output for job in WORKLOADS[model][name].jobs)
    all_of = {which: [each for mine, seconds in blocks if mine == which for each in seconds] for which in (OLD, NEW)}
    made: dict[str, Any] = {"model": model, "workload": name}
    made |= {f"{which}_tok_s": round(tokens / median(all_of[which]), 1) for which in all_of if all_of[which]}
    if all(all_of.values()):
        made["new_over_old"] = round(median(all_of[OLD]) / median(all_of[NEW]), 4)
        made["fastest_over_fastest"] = round(min(all_of[OLD]) / min(all_of[NEW]), 4)
    made["blocks"] = [{"of": which, "seconds": seconds} for which, seconds in blocks]
    return made


if __name__ == "__main__":
    sys.exit(ran(main))
