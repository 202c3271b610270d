"""Gradus, vLLM and Gradus again, on one GPU: the comparison that src/gradus/bench/studies/beside.py declares.

    PYTHONPATH=src:. python3 benchmarks/beside_vllm.py --vllm DIR --model qwen3-0.6b --out "$OUT" --commit "$COMMIT"

DIR holds the unpacked vLLM: DIR/site (vLLM itself), DIR/deps, and DIR/stubs for modules that were left out. Each
engine runs in a separate process, because both need most of the memory; OUT/logs has their output. Results are written
after each block. If vLLM fails, our samples and its reason are kept. `--cases sampling` measures the cost of sampling
parameters instead, `--cases int4` and others the gain of fewer bits: as separate runs of the same model. `--cases
long` measures long contexts, `--only` a few of them, by their labels in the table that ends the script's output. A run
replaces the one that OUT has of the same model and cases; `--only` is refused where others would be lost:

    … --model llama-3.1-8b --cases long --only 32,000 120,000 "8 agents"

Several models can be measured at the same time on several GPUs, each by a process that sees only its own
(CUDA_VISIBLE_DEVICES); they may share OUT.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradus.bench.declare.suites import cache_for
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Run
from gradus.bench.report import markdown
from gradus.bench.run.blocks import case_of, gradus, in_turns, vllm
from gradus.bench.run.script import ran
from gradus.bench.studies import beside
from gradus.bench.studies.beside import OUR_BLOCKS, THEIR_BLOCK, THEIRS, Case, Group, at_budget
from gradus.bench.workloads import SEED, Workload
from gradus.cache.groups import layer_groups
from gradus.config.options import DEFAULT_PAGE_SIZE
from gradus.errors import ConfigError, GradusError
from gradus.models.shapes import SHAPES

BLOCK_SECONDS = 270
QUICK_JOBS, QUICK_PROMPT, QUICK_OUTPUT = 4, 24, 6
VLLM_MEMORY = 0.85
VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")


@dataclass(frozen=True)
class Comparison:
    """One model's cases. vllm: its unpacked folder. out: the folder of all reports. vllm_block: the script that runs
    it.

    group: of the cases; see `gradus.bench.studies.beside`. only: the labels to measure; () is all of them. once: leave
    out our second block, where time on the GPU is short.
    quick: a rehearsal with few short requests, for which any shape takes the cases of the group's first.
    """

    shape: str
    vllm: Path
    out: Path
    commit: str
    device: str = "cuda"
    dtype: str = "bfloat16"
    quick: bool = False
    group: str = ""
    only: Sequence[str] = ()
    once: bool = False
    vllm_block: Path = VLLM_BLOCK

    def measure(self) -> Run:
        """Measure all blocks. Raises ConfigError if our first one has no results, or if other cases would be lost."""
        cases = self.cases
        self._spare_other_cases()
        first, second = OUR_BLOCKS
        theirs = vllm(self.vllm, str(self.vllm_block.resolve()))
        sides = {first: gradus(BLOCK_SECONDS), THEIR_BLOCK: theirs}
        sides |= {} if self.once else {second: gradus(BLOCK_SECONDS)}
        run: Run | None = None
        with tempfile.TemporaryDirectory() as work:
            for block, found, why in in_turns(sides, self._asked(cases, Path(work)), self._log):
                if run is None and not found.get("fingerprint"):
                    raise ConfigError(f"{self.shape}: Gradus did not run: {why}")
                run = run or self._run(cases, found)
                self._take(run, block, found, why)
        assert run is not None, "there are two blocks at least"
        return run

    @cached_property
    def cases(self) -> list[Case]:
        """The cases to measure. Raises ConfigError for a model or a label without any."""
        shapes = list(dict.fromkeys(case.shape for case in beside.CASES if case.group == self.group))
        if self.shape not in shapes and not self.quick:
            what = f" for the cases {self.group!r}" if self.group else ""
            raise ConfigError(f"model must be one of {', '.join(shapes)}{what}, got {self.shape!r}")
        of = self.shape if self.shape in shapes else shapes[0]
        cases = [replace(case, shape=self.shape) for case in beside.cases_of(of, self.group)]
        labels = {case.label for case in cases}
        if unknown := [label for label in self.only if label not in labels]:
            raise ConfigError(f"only must be among {', '.join(map(repr, sorted(labels)))}, got {unknown[0]!r}")
        return [case for case in cases if not self.only or case.label in self.only]

    def _spare_other_cases(self) -> None:
        """Raise ConfigError if `only` leaves out cases that OUT has: the run would replace theirs."""
        asked = {(case.table, case.label) for case in self.cases}
        for file in self.out.glob(f"*/{beside.NAME}/{results.FILE}") if self.only else ():
            run = results.read(file).run(f"random:{self.shape}", self.dtype, self.group)
            others = [cell.row for cell in (run.cells if run else ()) if (cell.table, cell.row) not in asked]
            if others:
                raise ConfigError(f"{file}: this run would replace {', '.join(others)}: give another --out")

    @property
    def ours(self) -> str:
        return beside.GROUPS[self.group].contender

    def _log(self, block: str) -> Path:
        name = "-".join(part for part in (beside.NAME, self.shape, self.group, block) if part)
        return self.out / "logs" / f"{name}.txt"

    # -- the requests --------------------------------------------------------------------------------------------------

    def workload(self, case: Case) -> Workload:
        return rehearsed(case.workload) if self.quick else case.workload

    def _asked(self, cases: list[Case], work: Path) -> dict[str, Any]:
        """Describe the cases, the same for both sides, including token ids."""
        config = SHAPES[self.shape]
        folder = work / self.shape
        folder.mkdir()
        group = beside.GROUPS[self.group]
        theirs = beside.vllm_config(config, self.group)
        (folder / "config.json").write_text(json.dumps(theirs))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": theirs["eos_token_id"]}))
        asked = described(cases, device=self.device, dtype=self.dtype, quick=self.quick)
        return asked | {
            "config": str(folder),
            "quantize": _quantize(group.quantize, work),
            "load_format": "dummy",
            "memory_share": VLLM_MEMORY,
            "vllm_options": dict(group.vllm_options) | self._pool(asked["cache_tokens"]),
        }

    def _pool(self, positions: int) -> dict[str, Any]:
        """Give vLLM as many pages as we have, one per layer group for each block of positions, and its prefix cache."""
        if not beside.GROUPS[self.group].prefix_cache:
            return {}
        groups = len(layer_groups(SHAPES[self.shape]))
        pages = -(-positions // DEFAULT_PAGE_SIZE) * groups
        return {"enable_prefix_caching": True, "num_gpu_blocks_override": pages}

    # -- the results ---------------------------------------------------------------------------------------------------

    def _run(self, cases: list[Case], found: dict[str, Any]) -> Run:
        """Begin the run's results: our first block's machine, and an empty cell for every case."""
        group = beside.GROUPS[self.group]
        run = Run(
            model=f"random:{self.shape}",
            dtype=self.dtype,
            device=found["device"],
            fingerprint=found["fingerprint"],
            group=self.group,
            settings={
                "commit": self.commit,
                "seed": SEED,
                "quick": self.quick,
                "repeats a block": beside.REPEATS,
                "sampling": group.sampled,
                **_kept(group),
                "precision": found["precision"],
                "prefix cache": _prefix_cache(group),
                "hardware": found["hardware"],
            },
        )
        for x, case in enumerate(cases):
            workload = self.workload(case)
            run.put(
                Cell(
                    table=case.table,
                    row=case.label,
                    x=x,
                    batch=len(workload.jobs),
                    workload=workload.record(),
                    entries=[*map(Entry, case.theirs), Entry(self.ours)],
                )
            )
        return run

    def _take(self, run: Run, block: str, found: dict[str, Any], why: str | None) -> None:
        """Add a block's samples to their cells, each with the block's name, and write the results."""
        if "version" in found:
            run.fingerprint["versions"]["vllm"] = found["version"]
        for case in self.cases:
            cell = run.cell(case.table, case.label)
            assert cell is not None
            measured = found.get("cases", {}).get(case.name, {})
            samples = {self.ours: measured.get("samples", [])}
            if block == THEIR_BLOCK:
                at = measured.get("at_budget", {})  # its keys are texts, as JSON has them
                others = {at_budget(tokens): at.get(str(tokens), []) for tokens in case.budgets}
                samples = {THEIRS: measured.get("samples", [])} | others
            for contender, some in samples.items():
                entry = cell.entry(contender)
                assert entry is not None
                entry.samples += [sample | {"block": block} for sample in some]
                entry.prediction = measured.get("prediction") or entry.prediction
                if not some:
                    entry.skipped = measured.get("failed") or why or "its process ended before"
                    entry.skipped += "" if block == THEIR_BLOCK else f" (block {block})"
        results.update(self.out, run.settings["hardware"], beside.NAME, run)


def rehearsed(workload: Workload) -> Workload:
    """A few short requests; of conversations, the first two turns."""
    return workload.shrunk(_two_turns(workload) or QUICK_JOBS, QUICK_PROMPT, QUICK_OUTPUT)


def _two_turns(workload: Workload) -> int:
    """How many jobs the first two turns of all conversations are; 0 if the jobs are no conversations."""
    first = sum(job.follows is None for job in workload.jobs)
    return 2 * first if first < len(workload.jobs) else 0


def described(cases: Sequence[Case], *, device: str, dtype: str, quick: bool) -> dict[str, Any]:
    """Describe cases of one model and group, the same for every engine (see `gradus.bench.run.block`)."""
    shape, name = cases[0].shape, cases[0].group
    group = beside.GROUPS[name]
    works = [(case, rehearsed(case.workload) if quick else case.workload) for case in _in_order(cases)]
    context = min(beside.context_of(shape, name), SHAPES[shape].context_length)
    positions = max(context, cache_for(work for _, work in works))
    if group.prefix_cache and not quick:
        positions = max(positions, beside.POOL_TOKENS)
    return {
        "model": f"random:{shape}",
        "device": device,
        "dtype": dtype,
        "contender": group.contender,
        "interface": group.interface,
        "quantize": group.quantize,
        "kv_dtype": group.kv_dtype,
        "context": context,
        "max_sequences": QUICK_JOBS if quick else group.sequences,
        "cache_tokens": positions,
        "token_budget": group.token_budget,
        "repeats": beside.REPEATS,
        "enough_s": group.enough_s,
        "quick": quick,
        "cases": [
            _described(case, work, context, unmeasured)
            for (case, work), unmeasured in zip(works, _unmeasured(works, positions), strict=True)
        ],
    }


def _in_order(cases: Sequence[Case]) -> list[Case]:
    """Cases whose prompts stay in the prefix cache come first, since their first round computes the prompt: that warms
    up a new prompt of the same length."""
    return sorted(cases, key=lambda case: not case.hits)


def _unmeasured(works: Sequence[tuple[Case, Workload]], positions: int) -> Iterator[int]:
    """How many rounds of each case are not measured: one, none for a length that has run, or enough to fill the pool.

    positions: of the pool.
    """
    warm: set[tuple[int, ...]] = set()
    for case, work in works:
        lengths = tuple(job.prompt for job in work.jobs)
        filling = -(-positions // _left(work)) if beside.GROUPS[case.group].steady else 0
        yield filling + (0 if case.group == beside.LONG and case.new_prompts and lengths in warm else 1)
        warm.add(lengths)


def _described(case: Case, work: Workload, context: int, unmeasured: int) -> dict[str, Any]:
    group = beside.GROUPS[case.group]
    return case_of(
        case.name,
        work.arrivals(SHAPES[case.shape].vocab_size, context),
        case.sampling,
        decode_alone=case.metric in (beside.DECODE, beside.ANSWER),
        new_prompts=case.new_prompts,
        keep_prefixes=group.prefix_cache,
        watch_idle=case.group != beside.LONG,  # it takes another round, of seconds here
        unmeasured=unmeasured,
        warm_up=_two_turns(work) or len(work.jobs),
        budgets=case.budgets,
    )


def _left(workload: Workload) -> int:
    """The positions in full pages that a round leaves in the prefix cache. A last token is never stored."""
    return DEFAULT_PAGE_SIZE * sum((job.prompt + job.output - 1) // DEFAULT_PAGE_SIZE for job in workload.jobs)


def _prefix_cache(group: Group) -> str:
    """Describe the prefix cache for a run's settings."""
    if not group.prefix_cache:
        return "off"
    return "on, and full" if group.steady else "on"


def _quantize(asked: str | Mapping[str, str] | None, work: Path) -> str | None:
    """Convert to `LLM`'s form, where patterns are a file."""
    if not isinstance(asked, Mapping):
        return asked
    file = work / "mix.yaml"
    file.write_text(json.dumps(dict(asked)))
    return str(file)


def _kept(group: Group) -> dict[str, Any]:
    """Describe a run's bits and what vLLM is asked for, for its settings; {} for the usual ones."""
    options = {**group.vllm_config, **group.vllm_options}
    theirs = {"vLLM": options} if options else {}
    if group.quantize is None:
        return theirs
    return {"quantize": group.quantize, "cache": group.kv_dtype} | theirs


def is_measured(out: Path, hardware: str, shape: str, dtype: str, commit: str, group: str = "") -> bool:
    """Whether every case of the model's group has samples of all three blocks, of this commit."""
    file = results.path(out, hardware, beside.NAME)
    run = results.read(file).run(f"random:{shape}", dtype, group) if file.exists() else None
    if run is None or run.settings["commit"] != commit:
        return False
    for case in beside.cases_of(shape, group):
        cell = run.cell(case.table, case.label)
        blocks = {sample["block"] for entry in cell.entries for sample in entry.samples} if cell else set()
        if blocks != {*OUR_BLOCKS, THEIR_BLOCK}:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the folder that vLLM was unpacked in")
    parser.add_argument("--model", dest="shape", required=True, help="a shape, as in qwen3-0.6b")
    parser.add_argument("--cases", dest="group", choices=[*beside.GROUPS][1:], default="", help="a group of cases")
    parser.add_argument("--only", nargs="+", default=(), metavar="LABEL", help="of the cases, those with these labels")
    parser.add_argument("--once", action="store_true", help="without our second block, where time on the GPU is short")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the reports")
    parser.add_argument("--commit", required=True, help="the commit that is measured, as `git rev-parse` gives it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a few short requests")
    comparison = Comparison(**vars(parser.parse_args()))
    try:
        run = comparison.measure()
    except GradusError as mistake:
        print(f"gradus: {mistake}", file=sys.stderr)
        return 2
    print(markdown(*beside.compared(comparison.cases, run)))
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
