"""Time each stage of a pass of prompt rows in the compiled kernels, and compare its products with torch's best.

    PYTHONPATH=src:. python3 benchmarks/cpu_stages.py --out benchmarks/cpu_stages.json

A pass of some rows of one sequence runs behind a context of noise. Each stage is a step of its own here, over all
layers in turn, so that weights come from memory as in a whole pass; the least of several times is kept. GMAC/s are
multiplications of the stage's matrices alone, though it also normalizes, activates, or adds.
For processors with AVX2 alone, run it with the variables of `beside_llama.FEATURES`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.beside_llama import SETTINGS
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.execution.compiled import CompiledRunner, alone
from gradus.kernels.cpu.decode_step import ATTEND, DOWN, OUTPUT, QKV, UP
from gradus.kernels.cpu.model import DecodeModel
from gradus.kernels.cpu.rows import processor
from gradus.models.config import ModelConfig
from gradus.text.llm import LLM

STAGES = {QKV: "qkv", ATTEND: "attend", OUTPUT: "output", UP: "up", DOWN: "down"}
ROWS, CONTEXTS = (32, 64), (0, 1900)
KINDS = ("bfloat16", "int8", "int4")  # by default, of random weights; a GGUF file has the kinds of `beside_llama`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:smollm2-135m")
    parser.add_argument("--kind", action="append", choices=tuple(SETTINGS), help=f"may be repeated; {KINDS} by default")
    parser.add_argument("--rows", type=int, action="append", help=f"may be repeated; {ROWS} by default")
    parser.add_argument("--context", type=int, action="append", help=f"may be repeated; {CONTEXTS} by default")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    asked = parser.parse_args()
    found: dict[str, Any] = {"commit": commit(), **fingerprint(torch.device("cpu"), quick=True), "rows": []}
    found["hardware"]["instruction sets"] = processor()[1]
    found["torch_gmac_s"] = torchs_best()
    for kind in asked.kind or KINDS:
        longest = max(asked.rows or ROWS) + max(asked.context or CONTEXTS)
        llm = LLM(asked.model, device="cpu", context_length=longest, max_sequences=1, **SETTINGS[kind])
        runner = llm.engine.runner
        assert isinstance(runner, CompiledRunner), "this processor's engine runs in torch"
        for rows in asked.rows or ROWS:
            for context in asked.context or CONTEXTS:
                times = stage_times(runner.decode, rows, context, asked.rounds)
                row: dict[str, Any] = {"model": asked.model, "kind": kind, "rows": rows, "context": context}
                found["rows"].append(row | times | {"gmac_s": rates(llm.config, rows, context, times["ms"])})
                print(json.dumps(found["rows"][-1]), flush=True)
    text = json.dumps(found, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    else:
        print(text, end="")


def torchs_best(rows: int = 512, width: int = 1536, columns: int = 576) -> float:
    """GMAC/s of torch's float32 product of matrices of this shape."""
    x, weights = torch.randn(rows, width), torch.randn(columns, width)
    return significant(rows * width * columns / best(lambda: torch.mm(x, weights.t()), 30) / 1e9, 3)


@torch.inference_mode()
def stage_times(decode: DecodeModel, rows: int, context: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a whole pass, without the head, and of each stage over all layers."""
    tokens, positions = torch.arange(rows), torch.arange(rows) + context
    decode.tables[:, 0] = torch.arange(1, decode.tables.shape[2] + 1)
    before, kinds = list(range(rows)), decode.step.stages["kind"][: decode.count - 1].tolist()
    with alone():
        whole = best(lambda: decode.run(tokens, positions, [0] * rows, before, []), rounds)
        least: dict[str, float] = {}
        for _ in range(rounds):
            sums = dict.fromkeys(STAGES.values(), 0.0)
            for index, kind in enumerate(kinds):
                began = time.perf_counter()
                decode._run(index, 1)
                if kind in STAGES:
                    sums[STAGES[kind]] += time.perf_counter() - began
            least = {name: min(seconds, least.get(name, seconds)) for name, seconds in sums.items()}
    return {
        "pass_ms": significant(1e3 * whole, 3),
        "ms": {name: significant(1e3 * seconds, 3) for name, seconds in least.items()},
    }


def best(run: Any, times: int) -> float:
    """The least seconds of several runs."""
    least = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - began)
    return least


def rates(config: ModelConfig, rows: int, context: int, milliseconds: dict[str, float]) -> dict[str, float]:
    """GMAC/s of each stage. Attention multiplies queries by the keys that they see, and weights by values."""
    hidden, inner = config.hidden_size, config.intermediate_size
    weights = {
        "qkv": hidden * sum(config.qkv_widths), "output": config.q_width * hidden,
        "up": hidden * sum(config.up_widths), "down": inner * hidden,
        "attend": round(2 * config.q_width * (context + (rows + 1) / 2)),
    }  # fmt: skip
    layers = config.num_layers
    return {name: significant(layers * rows * count / milliseconds[name] / 1e6, 3) for name, count in weights.items()}


if __name__ == "__main__":
    sys.exit(ran(main))
