"""The suite behind reports/h200: its benchmarks and models, the most important first.

    PYTHONPATH=src:. timeout 585 python3 benchmarks/h200.py --out "$OUT" --commit "$COMMIT" --vllm DIR

Every cell is written as soon as it is measured, so the command may be stopped at any time. Results that are already in
`--before` (of the same commit) are kept and not measured again: put earlier results there, and run it again for
the rest. Only results.json is written; `gradus report` makes reports and figures from it.

`--list` shows the parts. With several GPUs, start a process for each with different parts, so that no two work on the
same benchmark of the same model; they may share OUT:

    for gpu in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$gpu … python3 benchmarks/h200.py … --parts "${parts[gpu]}" & done; wait
"""

import argparse
import gc
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.beside_vllm import Comparison, is_measured
from gradus.bench.command import watcher
from gradus.bench.contenders.workbench import Workbench
from gradus.bench.declare.suites import ABLATION, LADDER, MATRIX
from gradus.bench.measure.settings import Settings
from gradus.bench.record import results
from gradus.bench.run.script import ran
from gradus.bench.run.suite import Suite
from gradus.bench.studies import beside, sampling_cost, sampling_report


@dataclass(frozen=True)
class Part:
    """One benchmark on one model. tables, contenders: only these; (): all. repeats: None: the usual number.

    group: the group of cases to compare with vLLM.
    """

    benchmark: str
    model: str
    dtype: str
    tables: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    repeats: int | None = None
    group: str = ""


GPT2, LLAMA, QWEN = "random:gpt2-124m", "random:llama-3.2-1b", "random:qwen3-0.6b"
LLAMA_8B, GEMMA = "random:llama-3.1-8b", "random:gemma3-1b"

PARTS = (
    # the final engine and vLLM
    Part(beside.NAME, QWEN, "bfloat16"),
    Part(beside.NAME, LLAMA, "bfloat16"),
    Part(beside.NAME, LLAMA_8B, "bfloat16"),
    Part(beside.NAME, GPT2, "bfloat16"),
    Part(beside.NAME, QWEN, "bfloat16", group=beside.SAMPLING),
    *(
        Part(beside.NAME, LLAMA_8B, "bfloat16", group=name)
        for name, group in beside.GROUPS.items()
        if group.section == beside.QUANTIZED
    ),
    # every phase on one workload
    Part(LADDER, LLAMA, "bfloat16"),
    Part(LADDER, QWEN, "bfloat16"),
    # the value of each optimization in the final engine, and every phase on every kind of workload
    Part(ABLATION, QWEN, "bfloat16", repeats=3),
    Part(MATRIX, QWEN, "bfloat16", repeats=3),
    # the cost of sampling parameters
    Part(sampling_report.NAME, QWEN, "bfloat16"),
    Part(sampling_report.NAME, GPT2, "bfloat16"),
    # each phase on the workloads that it is for: kernels and graphs
    Part("p09", QWEN, "bfloat16", repeats=3),
    Part("p10", QWEN, "bfloat16", repeats=3),
    Part("p09", LLAMA, "bfloat16", repeats=3),
    Part("p10", LLAMA, "bfloat16", repeats=3),
    # memory as the size of the batch
    Part("p05", LLAMA, "bfloat16"),
    Part("p06", LLAMA, "bfloat16", repeats=3),  # of half a minute and more
    # fewer bits in plain torch
    Part("p07", LLAMA, "bfloat16"),
    Part("p04", GPT2, "float32", ("memory",), repeats=1),  # minutes a run, and a cache's size is the same in all
    Part("p04", GPT2, "float32", ("equal-memory", "gather", "profile"), repeats=3),
    # GPT-2 in float32: the shape of the published build-up that the course's first phases are compared with
    Part("p01", GPT2, "float32"),
    Part("p02", GPT2, "float32"),
    Part("p03", GPT2, "float32", ("mixed-lengths", "arrivals", "profile")),
    Part("p00", GPT2, "float32"),
    # the same in bfloat16
    Part("p01", GPT2, "bfloat16", ("output-length", "profile")),
    Part("p02", GPT2, "bfloat16", ("batch-size", "profile")),
    # models of today, large enough that the weights' bytes count
    Part("p02", LLAMA, "bfloat16", ("batch-size", "profile")),
    Part("p01", LLAMA, "bfloat16", ("output-length", "profile"), ("p00", "p01")),
    Part("p03", LLAMA, "bfloat16", ("mixed-lengths", "published", "profile")),
    Part("p02", QWEN, "bfloat16", ("batch-size", "profile")),
    Part("p01", QWEN, "bfloat16", ("output-length", "profile"), ("p00", "p01")),
    # the final engine and vLLM, both with their pools full
    *(Part(beside.NAME, model, "bfloat16", group=beside.STEADY) for model in (QWEN, LLAMA, GEMMA)),
    # the same with long contexts
    *(Part(beside.NAME, model, "bfloat16", group=beside.LONG) for model in (LLAMA, LLAMA_8B)),
)


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{number:3}  {said(part)}" for number, part in enumerate(PARTS, start=1)))
        return 0
    if options.out is None or options.commit is None:
        parser.error("--out and --commit are needed")
    keep(options.before, options.out)
    bench = Bench(options.out, options.commit, options.vllm, quick=options.quick, peers=not options.no_peers)
    took, failed = [], 0
    for number in chosen(options.parts):
        part = PARTS[number - 1]
        start = time.perf_counter()
        try:
            bench.run(part)
            how = "done"
        except Exception:  # the parts after it may still succeed
            traceback.print_exc()
            failed, how = failed + 1, "FAILED"
        took.append(f"{number:3}  {said(part)}: {how} in {time.perf_counter() - start:.0f} s")
        print(took[-1], flush=True)
    print("\n".join(["", *took]))
    return 1 if failed else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the folder of the reports")
    parser.add_argument("--before", type=Path, default=Path("reports"), help="results to go on from")
    parser.add_argument("--commit", help="the commit that is measured, as `git rev-parse` gives it")
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in; without it, it is left out")
    parser.add_argument("--parts", help="only these, counted from 1: as in 1-5 or 6,7")
    parser.add_argument("--no-peers", action="store_true", help="leave transformers out: a third of p09's time")
    parser.add_argument("--list", action="store_true", help="show the parts and do nothing")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: short workloads, two repeats")
    return parser


def keep(before: Path, out: Path) -> None:
    """Copy the earlier results, except where OUT has newer ones."""
    for found in sorted(before.glob(f"h200/*/{results.FILE}")):
        target = out / found.relative_to(before)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)


@dataclass
class Bench:
    """Runs parts; a model stays loaded as long as the next part needs it."""

    out: Path
    commit: str
    vllm: Path | None
    quick: bool
    peers: bool
    suite: Suite | None = None

    def run(self, part: Part) -> None:
        if part.benchmark == beside.NAME:
            self._compare(part)
            return
        if part.benchmark == sampling_report.NAME:
            self._vary_sampling(part)
            return
        settings = Settings(
            part.model, "cuda", part.dtype, repeats=part.repeats, quick=self.quick, resume=True, commit=self.commit,
            tables=part.tables, contenders=part.contenders, peers=self.peers,
        )  # fmt: skip
        with watcher() as watching:
            suite = self.suite
            if suite is None or (suite.settings.model, suite.settings.dtype) != (part.model, part.dtype):
                del suite
                self._let_go()
                suite = Suite(settings, Workbench.open(part.model, "cuda", part.dtype), self.out, watching)
                self.suite = suite
            suite.settings, suite.watcher = settings, watching
            suite.measure(part.benchmark)

    def _compare(self, part: Part) -> None:
        shape = part.model.removeprefix("random:")
        if self.vllm is None:
            print(f"{said(part)}: left out, no --vllm DIR", flush=True)
        elif is_measured(self.out, "h200", shape, part.dtype, self.commit, part.group):
            print(f"{said(part)}: measured already", flush=True)
        else:
            self._let_go()  # both engines need most of the memory
            Comparison(
                shape, self.vllm, self.out, self.commit, dtype=part.dtype, quick=self.quick, group=part.group
            ).measure()

    def _vary_sampling(self, part: Part) -> None:
        if sampling_cost.is_measured(self.out, "h200", part.model, part.dtype, self.commit):
            print(f"{said(part)}: measured already", flush=True)
            return
        self._let_go()  # it builds its own engine, with a model
        settings = Settings(part.model, "cuda", part.dtype, quick=self.quick, commit=self.commit)
        with watcher() as watching:
            sampling_cost.measure(settings, self.out, watching)

    def _let_go(self) -> None:
        self.suite = None
        gc.collect()
        torch.cuda.empty_cache()


def said(part: Part) -> str:
    which = " ".join(part.tables) or part.group
    return f"{part.benchmark:12} {part.model.removeprefix('random:'):13} {part.dtype:9} {which}".rstrip()


def chosen(text: str | None) -> list[int]:
    """Parse "1-3,7" → [1, 2, 3, 7]; None: all."""
    if text is None:
        return list(range(1, len(PARTS) + 1))
    bounds = [part.split("-") for part in text.split(",")]
    return [number for low, *high in bounds for number in range(int(low), int(high[0] if high else low) + 1)]


if __name__ == "__main__":
    sys.exit(ran(main))
