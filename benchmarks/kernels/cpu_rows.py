"""Find the number of rows up to which the compiled kernels are faster than torch on this processor.

    PYTHONPATH=src:. python3 benchmarks/kernels/cpu_rows.py --out benchmarks/kernels/cpu_rows.json
    PYTHONPATH=src:. python3 benchmarks/kernels/cpu_rows.py --table benchmarks/kernels/cpu_rows.json

It runs steps of one chunk of tokens through both in turns; the models' weights are random, except for a GGUF file's.
Each token of a step of up to DECODES gets logits, as decodes do; of a longer step, the last token alone.
`--table` measures nothing: it writes the processor's file in src/gradus/kernels/cpu/measured_rows/, by which the engine
chooses (`gradus.kernels.cpu.rows`). Run it where nothing else runs, once as it is, and once for processors with AVX2
alone, with the variables of `beside_llama.FEATURES`.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gradus.attention.batch import Batch
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import median, significant
from gradus.execution.compiled import CompiledPass, alone
from gradus.execution.layout import sampled_rows
from gradus.execution.passes import TorchPass
from gradus.execution.runner import Runner
from gradus.kernels.cpu.rows import GGUF, processor
from gradus.text.llm import LLM

MODELS = ("random:smollm2-135m", "random:qwen2.5-1.5b")
KINDS = ("bfloat16", "int8", "int4")
STORED = ("smollm2-135m", "gemma3-270m")  # GGUF files, run as they are stored
ROWS = (4, 8, 16, 24, 32, 64, 128, 256, 512)
CONTEXT = ROWS[-1]
DECODES = 64  # rows: all get logits up to this number, as those of decodes do
ALWAYS = 8  # rows: decodes of this many sequences are what the kernels are for
MEASURED = Path(__file__).parents[2] / "src/gradus/kernels/cpu/measured_rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"may be repeated; {', '.join((*MODELS, *STORED))} by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    parser.add_argument("--table", type=Path, help="measure nothing: write the processor's file from these results")
    asked = parser.parse_args()
    if asked.table:
        print(write_table(json.loads(asked.table.read_text())))
        return
    found = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "rows": []}
    found["hardware"]["instruction sets"] = processor()[1]
    for model in asked.model or (*MODELS, *STORED):
        for kind in KINDS if model not in STORED else (None,):
            found["rows"] += measure(model, kind, asked.rounds)
            print(json.dumps(found["rows"][-1]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(model: str, kind: str | None, rounds: int) -> list[dict[str, Any]]:
    """Measure the milliseconds of a step in the kernels and in torch, for each number of rows until torch is faster.

    kind: None for a file's own.
    """
    settings: dict[str, Any] = (
        {} if kind is None else {"dtype": "bfloat16", "quantize": None if kind == "bfloat16" else kind}
    )
    llm = LLM(model, device="cpu", context_length=CONTEXT, **settings)
    runner = llm.engine.runner
    passes = runner.step.passes if isinstance(runner, Runner) else None
    assert isinstance(passes, CompiledPass), "this processor's engine runs in torch"
    kind = kind or GGUF
    tables = passes.attention.tables
    tables[:, 0] = torch.arange(tables.shape[2])  # each position has a place of its own
    found = []
    for rows in ROWS:
        batch = chunk(rows)
        kernels, in_torch = [], []
        for turn in range(1 + rounds):
            for kept, run in ((kernels, compiled), (in_torch, plain)):
                began = time.perf_counter()
                run(passes, batch)
                kept += [1e3 * (time.perf_counter() - began)] if turn else []
        row: dict[str, Any] = {"model": model, "hidden_size": llm.config.hidden_size, "kind": kind, "tokens": rows}
        found.append(row | {"kernels_ms": _middle(kernels), "torch_ms": _middle(in_torch)})
        if rows > ALWAYS and found[-1]["kernels_ms"] > found[-1]["torch_ms"]:
            break
    return found


def _middle(values: list[float]) -> float:
    return significant(median(values), 4)


@torch.inference_mode()
def compiled(passes: CompiledPass, batch: Batch) -> None:
    passes.most_tokens = ROWS[-1]
    with alone():
        logits(passes, batch)


@torch.inference_mode()
def plain(passes: CompiledPass, batch: Batch) -> None:
    logits(TorchPass(passes.model, passes.attention, passes.sampler), batch)


def logits(passes: TorchPass, batch: Batch) -> None:
    """Run a step up to the logits of its rows."""
    hidden, _, _ = passes.run_prompts(batch, sampled_rows(batch))
    if hidden is not None:
        passes.model.logits(hidden)


def chunk(tokens: int) -> Batch:
    """Make a chunk of a sequence in slot 0."""
    positions = torch.arange(tokens)
    wanted = positions if tokens <= DECODES else positions[-1:]
    return Batch(
        token_ids=positions % 256, positions=positions, owners=torch.zeros_like(positions), slots=[0],
        query_start=[0], counts=[tokens], starts=[0], lengths=[tokens], tables=[None], logits_rows=wanted,
        row_spans=[0] * len(wanted),
    )  # fmt: skip


def write_table(found: dict[str, Any]) -> Path:
    """Write, for each kind and width, the most rows up to which the kernels are no slower, but at least ALWAYS."""
    most: dict[str, dict[str, int]] = {}
    for row in found["rows"]:
        widths = most.setdefault(row["kind"], {})
        width = str(row["hidden_size"])
        before = widths.setdefault(width, ALWAYS)
        slower = any(
            other["kernels_ms"] > other["torch_ms"]
            for other in found["rows"]
            if (other["kind"], other["hidden_size"]) == (row["kind"], row["hidden_size"])
            and ALWAYS < other["tokens"] <= row["tokens"]
        )
        widths[width] = before if slower else max(before, row["tokens"])
    processor, sets = found["hardware"]["processor"], found["hardware"]["instruction sets"]
    file = MEASURED / f"{re.sub('[^a-z0-9]+', '-', f'{processor} {sets}'.lower()).strip('-')}.json"
    result = {"processor": processor, "instruction_sets": sets, "commit": found["commit"], "most_rows": most}
    MEASURED.mkdir(exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    return file


if __name__ == "__main__":
    sys.exit(ran(main))
