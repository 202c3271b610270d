"""Replay captured steps to see what they cost, by their sequences, drafts and lengths.

    PYTHONPATH=src:. python3 benchmarks/draft_steps.py --out "$OUT"/draft_steps.json

A drafting engine chooses among these shapes by what they take, next to a step without drafts
(docs/design/speculation.md). A row has a model's microseconds per step for one shape, by the length of all its
sequences: the least of a few rounds of replays in a row. The weights are random: a step takes the same time whatever it
computes. All sequences share one page, which the cache holds: in service, long ones take longer.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.execution.gpu.capturing import replay_ms
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.runner import Runner
from gradus.scheduling.draft_shapes import DraftShape
from gradus.text.llm import LLM

MODELS = ("random:smollm2-135m", "random:llama-3.2-1b", "random:qwen3-0.6b")
SEQUENCES, SIZES, LENGTHS, ROUNDS = 32, (1, 8, 32), (100, 300, 1000, 3000), 4
CONTEXT, CACHE_TOKENS = 4096, 4096 * (SEQUENCES + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {"commit": asked.commit or commit(), "lengths": LENGTHS, "rows": []}
    for model in asked.models:
        llm = LLM(
            model, device="cuda", max_sequences=SEQUENCES, context_length=CONTEXT, cache_tokens=CACHE_TOKENS,
            speculate="ngram", switch_off=("prefix_cache",),
        )  # fmt: skip
        found |= fingerprint(llm.device, quick=True)
        found["rows"] += steps(llm, model)
        llm.close()
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def steps(llm: LLM, model: str) -> list[dict[str, Any]]:
    """Measure every captured shape of the SIZES."""
    runner = llm.engine.runner
    assert isinstance(runner, Runner) and runner.graphs is not None
    rows = []
    for size, shape in sorted(runner.graphs.shapes):
        if size in SIZES:
            took = [microseconds(runner.graphs, size, shape, length) for length in LENGTHS]
            row = {"model": model, "sequences": size, "drafts": shape.drafts, "draft_rows": shape.rows, "us": took}
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def microseconds(graphs: StepGraphs, size: int, shape: DraftShape, length: int) -> float:
    """The least time of a replay, over ROUNDS. Each replay makes the sequences longer, so each round sets them back."""
    graph, took = graphs.captured[size, shape, False].graph, []
    for _ in range(ROUNDS):
        graphs.try_out(size, shape, length)
        took.append(1e3 * replay_ms(graph))
    return round(min(took), 1)


if __name__ == "__main__":
    sys.exit(ran(main))
