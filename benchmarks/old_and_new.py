"""Two checkouts in turns, on the same token ids: is everything as fast as before?

    git worktree add /tmp/old COMMIT
    PYTHONPATH=src:. python3 benchmarks/old_and_new.py --old /tmp/old --out "$OUT"/old_and_new.json
    PYTHONPATH=src:. python3 benchmarks/old_and_new.py --old /tmp/old --out "$OUT"/long.json --cases short long \\
        --models llama-3.2-1b --only "batch 64" 32,000 120,000 "8 agents"

Each block is a process of its own: this checkout, the old one, and this one again, so that drift shows as a difference
between the first and the last. `--cases short` are batches that ask for nothing new: a block builds one engine for all
of a model's workloads and sends them through `LLM.generate`, greedily, end-of-sequence ignored, with the prefix cache
off; each runs whole before it is timed. `--cases long` are the long contexts that `beside_vllm.py` compares with vLLM,
with the prefix cache on: prompts alone, decodes and an answer after a hit, and agents' sessions. A row has its metric
in each block, and how many times as fast the new checkout is by the medians; `--must` is the least. Results are written
after each block. One that did not end well is noted under `failed`, and the script then fails, whatever the ratios of
the others. `--quick` rehearses it with a tiny model, on a CPU.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.beside_vllm import described as of_group
from benchmarks.beside_vllm import rehearsed
from gradus.bench.declare.suites import cache_for
from gradus.bench.measure.fingerprint import commit
from gradus.bench.record.metrics import METRICS, values
from gradus.bench.run.blocks import case_of, gradus, in_turns
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.bench.studies import beside
from gradus.bench.workloads import Workload, burst, single_stream
from gradus.errors import ConfigError
from gradus.models.shapes import SHAPES

Sample = dict[str, Any]
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
SHORT, LONG = "short", beside.LONG
TINY = "tiny-llama"


@dataclass(frozen=True)
class Question:
    """A description for `gradus.bench.run.block`, and the metric of each of its rows."""

    model: str
    asked: dict[str, Any]
    metrics: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the older checkout")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1], help="by default, this one")
    parser.add_argument("--cases", nargs="+", choices=(SHORT, LONG), default=[SHORT])
    parser.add_argument("--models", nargs="+", choices=[*WORKLOADS, beside.LLAMA_8B], default=[*WORKLOADS])
    parser.add_argument("--only", nargs="+", default=(), metavar="ROW", help="of the cases, those with these names")
    parser.add_argument("--blocks", nargs="+", choices=(OLD, NEW), default=[NEW, OLD, NEW])
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed runs of each workload in each block")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--must", type=float, default=MUST)
    parser.add_argument("--commit")
    parser.add_argument("--old-commit", default="unknown")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a few short requests to a tiny model")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    made: dict[str, Any] = {"commit": asked.commit or commit(), "old": asked.old_commit, "failed": [], "rows": []}
    done: list[dict[str, Any]] = []
    for question in questions(asked):
        done += rows(made, question, asked, done)
    fast = all(row.get("new_over_old", 0) >= asked.must for row in made["rows"])
    return 0 if fast and not made["failed"] else 1


def questions(asked: argparse.Namespace) -> list[Question]:
    """A question for each model and kind of cases. Raises ConfigError if nothing is left to ask."""
    models = [TINY] if asked.quick else asked.models
    found = [
        question
        for model in models
        for kind in asked.cases
        if (question := {SHORT: short, LONG: long}[kind](model, asked)).asked["cases"]
    ]
    if not found:
        what = f" called {', '.join(asked.only)}" if asked.only else ""
        raise ConfigError(f"{', '.join(models)}: there are no {' or '.join(asked.cases)} rows{what}")
    return found


def rows(
    made: dict[str, Any], question: Question, asked: argparse.Namespace, before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Run a question's blocks. Returns a row for each of its workloads."""
    sources = {OLD: asked.old, NEW: asked.new}
    sides = {f"{number}-{which}": gradus(BLOCK_SECONDS, sources[which] / "src")
             for number, which in enumerate(asked.blocks)}  # fmt: skip
    taken: dict[str, list[tuple[str, list[Sample]]]] = {name: [] for name in question.metrics}
    found: list[dict[str, Any]] = []
    logs, kind = asked.out.parent / "logs", question.asked["interface"]
    for block, answer, why in in_turns(
        sides, question.asked, lambda name: logs / f"{question.model}-{kind}-{name}.txt"
    ):
        cases = answer.get("cases", {})
        reasons = [why] if why else []
        reasons += [f"{name}: {case['failed']}" for name, case in cases.items() if "failed" in case]
        made["failed"] += [f"{question.model}, {block}: {reason}" for reason in reasons]
        for name, case in cases.items():
            taken[name].append((block.partition("-")[2], case["samples"]))
        found = [row(question.model, name, question.metrics[name], blocks) for name, blocks in taken.items()]
        made |= answer.get("fingerprint", {})
        made["rows"] = [*before, *found]
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    for each in found:
        print(json.dumps({key: value for key, value in each.items() if key != "blocks"}), flush=True)
    return found


def long(model: str, asked: argparse.Namespace) -> Question:
    """The long contexts that are compared with vLLM, under the labels that they have there."""
    of = beside.LLAMA_1B if asked.quick else model
    cases = [
        replace(case, shape=model) for case in beside.cases_of(of, LONG) if case.label in (asked.only or [case.label])
    ]
    if not cases:
        return Question(model, {"cases": []}, {})
    made = of_group(cases, device=asked.device, dtype="bfloat16", quick=asked.quick)
    labels = {case.name: case for case in cases}
    for case in made["cases"]:
        case["label"] = labels[case["label"]].label
    return Question(
        model, made | {"quick": True, "repeats": asked.repeats}, {case.label: case.metric for case in cases}
    )


def short(model: str, asked: argparse.Namespace) -> Question:
    """Batches of short requests, the same for both checkouts (see `gradus.bench.run.block`)."""
    works = WORKLOADS.get(beside.LLAMA_1B if asked.quick else model, {})
    works = {name: work for name, work in works.items() if name in (asked.only or works)}
    if asked.quick:
        works = {name: rehearsed(work) for name, work in works.items()}
    made = described(model, works, asked.device, asked.repeats) if works else {"cases": []}
    return Question(model, made, dict.fromkeys(works, beside.OUT))


def described(model: str, works: Mapping[str, Workload], device: str, repeats: int) -> dict[str, Any]:
    """Describe a model's workloads (see `gradus.bench.run.block`)."""
    config = SHAPES[model]
    context = min(beside.context_of(model), config.context_length)
    cases = [
        case_of(name, work.arrivals(config.vocab_size, context), {"temperature": 0.0}) for name, work in works.items()
    ]
    return {
        "model": f"random:{model}",
        "device": device,
        "dtype": "bfloat16",
        "contender": beside.OURS,
        "interface": "LLM",
        "quantize": None,
        "kv_dtype": "auto",
        "context": context,
        "max_sequences": beside.MAX_SEQUENCES,
        "cache_tokens": cache_for(works.values()),
        "repeats": repeats,
        "quick": True,
        "cases": cases,
    }


def row(model: str, name: str, metric: str, blocks: Sequence[tuple[str, list[Sample]]]) -> dict[str, Any]:
    """Compare a workload's blocks, each with the samples of its runs."""
    unit, better = metric.removeprefix("output_"), METRICS[metric].more_is_better
    all_of = {which: values([one for mine, some in blocks if mine == which for one in some], metric)
              for which in (OLD, NEW)}  # fmt: skip
    made: dict[str, Any] = {"model": model, "workload": name}
    made |= {f"{which}_{unit}": significant(median(found), 6) for which, found in all_of.items() if found}
    if all(all_of.values()):
        best = max if better else min
        sign = 1 if better else -1
        made["new_over_old"] = round((median(all_of[NEW]) / median(all_of[OLD])) ** sign, 4)
        made["fastest_over_fastest"] = round((best(all_of[NEW]) / best(all_of[OLD])) ** sign, 4)
    made["blocks"] = [
        {
            "of": which,
            "seconds": [one["seconds"] for one in some],
            unit: [significant(x, 5) for x in values(some, metric)],
        }
        for which, some in blocks
    ]
    return made


if __name__ == "__main__":
    sys.exit(ran(main))
