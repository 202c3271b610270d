"""The suite behind reports/h200: which benchmarks, on which models, in order of what would be missed the most.

    PYTHONPATH=src:. timeout 585 python3 benchmarks/h200.py --out "$OUT" --commit "$COMMIT"

Every cell is written as soon as it is measured, so the command may be stopped at any time. Results that are already in
`--before` (of the same commit) are kept and left out of the measuring: put what came back there, and run it again for
the rest. Only results.json is written; reports and figures are made from it with `gradus report`.
"""

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from gradus.bench import results
from gradus.bench.command import watcher
from gradus.bench.contenders import Workbench
from gradus.bench.suite import Settings, Suite


@dataclass(frozen=True)
class Part:
    """One benchmark on one model. tables, contenders: only these; () is all."""

    benchmark: str
    model: str
    dtype: str
    tables: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()


GPT2, LLAMA, QWEN = "random:gpt2-124m", "random:llama-3.2-1b", "random:qwen3-0.6b"

PARTS = (
    # GPT-2 in float32: the shape of the published build-up that the course's first phases are compared with
    Part("p01", GPT2, "float32"),
    Part("p02", GPT2, "float32"),
    Part("ladder", GPT2, "float32"),
    Part("p03", GPT2, "float32", ("mixed-lengths", "arrivals", "profile")),
    Part("p00", GPT2, "float32"),
    # the same in bfloat16
    Part("p01", GPT2, "bfloat16", ("output-length", "profile")),
    Part("p02", GPT2, "bfloat16", ("batch-size", "profile")),
    Part("ladder", GPT2, "bfloat16"),
    # a model of today, large enough that the weights' bytes count
    Part("p02", LLAMA, "bfloat16", ("batch-size", "profile")),
    Part("ladder", LLAMA, "bfloat16"),
    Part("p01", LLAMA, "bfloat16", ("output-length", "profile"), ("p00", "p01")),
    Part("p03", LLAMA, "bfloat16", ("mixed-lengths", "published", "profile")),
    Part("ladder", QWEN, "bfloat16"),
    Part("p02", QWEN, "bfloat16", ("batch-size", "profile")),
    Part("p01", QWEN, "bfloat16", ("output-length", "profile"), ("p00", "p01")),
    # memory as the size of the batch: each phase on the workload that it is for
    Part("p05", LLAMA, "bfloat16"),
    Part("p06", LLAMA, "bfloat16"),
    Part("p04", GPT2, "float32", ("equal-memory", "gather", "profile")),
    Part("p04", GPT2, "float32", ("memory",)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--before", type=Path, default=Path("reports"), help="results to go on from")
    parser.add_argument("--commit", required=True, help="the commit that is measured, as `git rev-parse` gives it")
    parser.add_argument("--parts", help="only these, counted from 1: as in 1-5 or 6,7")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: short workloads, two repeats")
    options = parser.parse_args()
    for found in sorted(options.before.glob(f"h200/*/{results.FILE}")):
        target = options.out / found.relative_to(options.before)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, target)
    took = []
    suite: Suite | None = None
    for number in chosen(options.parts):
        part = PARTS[number - 1]
        start = time.perf_counter()
        settings = Settings(
            part.model, "cuda", part.dtype, quick=options.quick, resume=True, commit=options.commit,
            tables=part.tables, contenders=part.contenders,
        )  # fmt: skip
        with watcher() as watching:
            if suite is None or (suite.settings.model, suite.settings.dtype) != (part.model, part.dtype):
                suite = None  # let go of the model before, then load the next
                suite = Suite(settings, Workbench.open(part.model, "cuda", part.dtype), options.out, watching)
            suite.settings, suite.watcher = settings, watching
            suite.measure(part.benchmark)
        took.append(f"{number:3} {part.benchmark:7} {part.model} {part.dtype}: {time.perf_counter() - start:.0f} s")
        print(took[-1], flush=True)
    print("\n".join(["", "done:", *took]))


def chosen(text: str | None) -> list[int]:
    """ "1-3,7" → [1, 2, 3, 7]; None is all."""
    if text is None:
        return list(range(1, len(PARTS) + 1))
    bounds = [part.split("-") for part in text.split(",")]
    return [number for low, *high in bounds for number in range(int(low), int(high[0] if high else low) + 1)]


if __name__ == "__main__":
    main()
