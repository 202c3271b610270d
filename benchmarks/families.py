"""Are all families as near to the memory's floor as Llama is? One engine per shape, in turn, on random weights.

    PYTHONPATH=src:. python3 benchmarks/families.py --models llama-3.2-3b smollm3-3b --out "$OUT"/families.json
    PYTHONPATH=src:. python3 benchmarks/families.py --models qwen3-30b-a3b --beside --out "$OUT"/families_experts.json

`--beside` runs a shape's workloads of the comparison with vLLM (`gradus.bench.studies.beside`), without vLLM.

A row has the tokens per second of every run and the share of the floor: the time that the step's bytes and operations
take at the machine's own measured rates (`gradus.bench.predict.roofline`), divided by the time taken. Results are
written after each shape.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gradus.bench.declare.suites import cache_for
from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.blocks import case_of, gradus, in_turns
from gradus.bench.run.script import ran
from gradus.bench.studies import beside
from gradus.bench.studies.beside import OURS, TEMPERATURE
from gradus.bench.workloads import Workload, burst, single_stream
from gradus.models.shapes import SHAPES

WORKLOADS: dict[str, Workload] = {"batch 1": single_stream(32, 384), "batch 32": burst(32, 128, 256)}
CONTEXT, MAX_SEQUENCES, REPEATS, BLOCK_SECONDS = 2048, 64, 3, 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="SHAPE", help="names of gradus.models.shapes")
    parser.add_argument("--beside", action="store_true", help="a shape's workloads of the comparison with vLLM")
    parser.add_argument("--quantize", help="a scheme for the matrices")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed runs of each workload")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    made: dict[str, Any] = {"commit": asked.commit or commit(), "rows": []}
    for model in asked.models:
        question = described(model, asked)
        sides = {model: gradus(BLOCK_SECONDS)}
        for _, answer, why in in_turns(sides, question, lambda name: asked.out.parent / "logs" / f"{name}.txt"):
            made |= answer.get("fingerprint", {})
            named = {"model": model} | ({"quantize": asked.quantize} if asked.quantize else {})
            for name, case in answer.get("cases", {}).items():
                made["rows"].append(named | row(workloads(model, asked.beside)[name], name, case))
            made["rows"] += [named | {"failed": why}] if why else []
            asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    for each in made["rows"]:
        print(json.dumps(each), flush=True)
    return 1 if any("failed" in row for row in made["rows"]) else 0


def workloads(model: str, against_vllm: bool) -> dict[str, Workload]:
    return {case.label: case.workload for case in beside.cases_of(model, "")} if against_vllm else WORKLOADS


def described(model: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Describe a shape's block (see `gradus.bench.run.block`)."""
    config, works = SHAPES[model], workloads(model, asked.beside)
    longest = max(job.prompt + job.output for work in works.values() for job in work.jobs)
    context = min(max(CONTEXT, 2 * longest), config.context_length)
    return {
        "model": f"random:{model}",
        "device": asked.device,
        "dtype": asked.dtype,
        "contender": OURS,
        "interface": "LLM",
        "quantize": asked.quantize,
        "kv_dtype": "auto",
        "context": context,
        "max_sequences": max(MAX_SEQUENCES, *(len(work.jobs) for work in works.values())),
        "cache_tokens": cache_for(works.values()),
        "repeats": asked.repeats,
        "quick": True,
        "cases": [
            case_of(name, work.arrivals(config.vocab_size, context), {"temperature": temperature(work, asked.beside)})
            for name, work in works.items()
        ],
    }


def temperature(work: Workload, against_vllm: bool) -> float:
    return TEMPERATURE if against_vllm and len(work.jobs) > 1 else 0.0


def row(work: Workload, name: str, case: dict[str, Any]) -> dict[str, Any]:
    """One workload's rates, and the share of the floor that the median run reaches."""
    seconds = [sample["seconds"] for sample in case["samples"]]
    made: dict[str, Any] = {"workload": name}
    if "failed" in case or not seconds:
        return made | {"failed": case.get("failed", "no run")}
    prompts = all(job.output == 1 for job in work.jobs)
    tokens = sum(job.prompt if prompts else job.output for job in work.jobs)
    floor = (case.get("prediction") or {}).get("seconds")
    made |= {"tok_s": [round(tokens / each, 1) for each in seconds], "floor_s": floor}
    return made | ({} if floor is None else {"of_floor": round(floor / median(seconds), 4)})


if __name__ == "__main__":
    sys.exit(ran(main))
