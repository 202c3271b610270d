"""Find the number of keys up to which a tile of decodes is better left whole than split between programs.

    PYTHONPATH=src:. python3 benchmarks/attention_splits.py --out benchmarks/attention_splits.json

It times captured decode steps of whole models at different lengths, with launches that leave tiles up to different
numbers of keys whole. It times whole steps, since the cost of a split (writing a partial result, a ticket, the
addition) is partly hidden by the next launch.
"""

import sys
from dataclasses import replace

import torch

from benchmarks.by_model import Rows, by_model
from gradus import LLM
from gradus.bench.run.script import need_triton, ran
from gradus.execution.gpu.capturing import replay_ms

if __name__ == "__main__":
    need_triton()

from benchmarks.recorded_step import recorded_step, set_length
from gradus.execution.runner import Runner

MODELS = ("random:smollm2-135m", "random:llama-3.2-1b", "random:gpt2-124m", "random:qwen3-0.6b")
BATCHES, WHOLE = (1, 8), (0, 256, 384, 512)
LENGTHS = (64, 130, 200, 256, 300, 400, 512, 768, 1000)
CONTEXT = 1024


def main() -> None:
    by_model(__doc__, MODELS, measure, lengths=LENGTHS)


@torch.inference_mode()
def measure(model: str) -> Rows:
    """Measure a row for each batch and number of keys. us: the time of a step, by length."""
    llm = LLM(model, device="cuda", max_sequences=max(BATCHES), context_length=CONTEXT)
    runner = llm.engine.runner
    assert isinstance(runner, Runner) and runner.graphs is not None
    graphs = runner.graphs
    attention, rows = graphs.step.attention, []
    shapes = attention.launches
    for whole in WHOLE:
        attention.launches = tuple(replace(shape, whole=whole) for shape in shapes)
        for batch in BATCHES:
            slots = [graphs.padding] * batch
            captured = recorded_step(graphs, slots, CONTEXT // 2)
            times = []
            for length in LENGTHS:
                set_length(graphs, slots, length)
                times.append(1e3 * min(replay_ms(captured.graph) for _ in range(3)))
            rows.append({"model": model, "batch": batch, "whole": whole, "us": times})
    return rows


if __name__ == "__main__":
    sys.exit(ran(main))
