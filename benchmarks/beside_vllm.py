"""Gradus, vLLM and Gradus again, on one GPU: the comparison that src/gradus/bench/studies/beside.py declares.

    PYTHONPATH=src:. python3 benchmarks/beside_vllm.py --vllm DIR --model qwen3-0.6b --out "$OUT" --commit "$COMMIT"

DIR holds the unpacked vLLM: DIR/site (vLLM itself), DIR/deps, and DIR/stubs for modules that were left out. Each
engine runs in a separate process, because both need most of the memory; OUT/logs has their output. Results are written
after each block. If vLLM fails, our samples and its reason are kept. `--cases sampling` measures the cost of sampling
parameters instead, `--cases int4` and others the gain of fewer bits: as separate runs of the same model.

Several models can be measured at the same time on several GPUs, each by a process that sees only its own
(CUDA_VISIBLE_DEVICES); they may share OUT.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.bench.declare.suites import cache_for
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Run
from gradus.bench.run.blocks import case_of, gradus, in_turns, vllm
from gradus.bench.run.script import ran
from gradus.bench.studies import beside
from gradus.bench.studies.beside import OUR_BLOCKS, THEIR_BLOCK, THEIRS, Case, Group
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

    group: of the cases; see `gradus.bench.studies.beside`.
    """

    shape: str
    vllm: Path
    out: Path
    commit: str
    device: str = "cuda"
    dtype: str = "bfloat16"
    quick: bool = False
    group: str = ""
    vllm_block: Path = VLLM_BLOCK

    def measure(self) -> Run:
        """Measure all three blocks. Raises ConfigError if our first one has no results."""
        cases = beside.cases_of(self.shape, self.group)
        if not cases:
            known = ", ".join(dict.fromkeys(case.shape for case in beside.CASES if case.group == self.group))
            what = f" for the cases {self.group!r}" if self.group else ""
            raise ConfigError(f"model must be one of {known}{what}, got {self.shape!r}")
        first, second = OUR_BLOCKS
        theirs = vllm(self.vllm, str(self.vllm_block.resolve()))
        sides = {first: gradus(BLOCK_SECONDS), THEIR_BLOCK: theirs, second: gradus(BLOCK_SECONDS)}
        run: Run | None = None
        with tempfile.TemporaryDirectory() as work:
            for block, found, why in in_turns(sides, self._asked(cases, Path(work)), self._log):
                if run is None and not found.get("fingerprint"):
                    raise ConfigError(f"{self.shape}: Gradus did not run: {why}")
                run = run or self._run(cases, found)
                self._take(run, THEIRS if block == THEIR_BLOCK else self.ours, block, found, why)
        assert run is not None, "there are three blocks"
        return run

    @property
    def ours(self) -> str:
        return beside.GROUPS[self.group].contender

    def _log(self, block: str) -> Path:
        name = "-".join(part for part in (beside.NAME, self.shape, self.group, block) if part)
        return self.out / "logs" / f"{name}.txt"

    # -- the requests --------------------------------------------------------------------------------------------------

    def workload(self, case: Case) -> Workload:
        return case.workload.shrunk(QUICK_JOBS, QUICK_PROMPT, QUICK_OUTPUT) if self.quick else case.workload

    def _asked(self, cases: list[Case], work: Path) -> dict[str, Any]:
        """Describe the cases, the same for both sides, including token ids."""
        config = SHAPES[self.shape]
        folder = work / self.shape
        folder.mkdir()
        group = beside.GROUPS[self.group]
        described = beside.vllm_config(config, self.group)
        (folder / "config.json").write_text(json.dumps(described))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": described["eos_token_id"]}))
        context = min(beside.context_of(self.shape), config.context_length)
        positions = max(context, cache_for(self.workload(case) for case in cases))
        if group.steady and not self.quick:
            positions = max(positions, beside.STEADY_TOKENS)
        asked_cases = [
            case_of(
                case.name, self.workload(case).arrivals(config.vocab_size, context), case.sampling,
                decode_alone=case.metric == beside.DECODE, new_prompts=group.steady,
                unmeasured=1 + (-(-positions // self._left(case)) if group.steady else 0),
            )
            for case in cases
        ]  # fmt: skip
        return {
            "model": f"random:{self.shape}",
            "config": str(folder),
            "device": self.device,
            "dtype": self.dtype,
            "contender": self.ours,
            "interface": group.interface,
            "quantize": _quantize(group.quantize, work),
            "kv_dtype": group.kv_dtype,
            "load_format": "dummy",
            "memory_share": VLLM_MEMORY,
            "vllm_options": dict(group.vllm_options) | self._steady_options(positions),
            "context": context,
            "max_sequences": QUICK_JOBS if self.quick else beside.MAX_SEQUENCES,
            "cache_tokens": positions,
            "repeats": beside.REPEATS,
            "quick": self.quick,
            "cases": asked_cases,
        }

    def _left(self, case: Case) -> int:
        """The positions in full pages that a round leaves in the prefix cache. A last token is never stored."""
        pages = [(job.prompt + job.output - 1) // DEFAULT_PAGE_SIZE for job in self.workload(case).jobs]
        return DEFAULT_PAGE_SIZE * sum(pages)

    def _steady_options(self, positions: int) -> dict[str, Any]:
        """Give vLLM as many pages as we have, one per layer group for each block of positions, and its prefix cache."""
        if not beside.GROUPS[self.group].steady:
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
                "prefix cache": "on, and full" if group.steady else "off",
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
                    entries=[Entry(THEIRS), Entry(self.ours)],
                )
            )
        return run

    def _take(self, run: Run, contender: str, block: str, found: dict[str, Any], why: str | None) -> None:
        """Add a block's samples to their cells, each with the block's name, and write the results."""
        if "version" in found:
            run.fingerprint["versions"]["vllm"] = found["version"]
        for case in beside.cases_of(self.shape, self.group):
            cell = run.cell(case.table, case.label)
            entry = cell.entry(contender) if cell else None
            assert entry is not None
            measured = found.get("cases", {}).get(case.name, {})
            entry.samples += [sample | {"block": block} for sample in measured.get("samples", [])]
            entry.prediction = measured.get("prediction") or entry.prediction
            if not measured.get("samples"):
                entry.skipped = measured.get("failed") or why or "its process ended before"
                entry.skipped += f" (block {block})" if contender == self.ours else ""
        results.update(self.out, run.settings["hardware"], beside.NAME, run)


def _quantize(asked: str | Mapping[str, str] | None, work: Path) -> str | None:
    """Convert to `LLM`'s form, where patterns are a file."""
    if not isinstance(asked, Mapping):
        return asked
    file = work / "mix.yaml"
    file.write_text(json.dumps(dict(asked)))
    return str(file)


def _kept(group: Group) -> dict[str, Any]:
    """Describe a run's bits for its settings; {} for the usual ones."""
    if group.quantize is None:
        return {}
    return {"quantize": group.quantize, "cache": group.kv_dtype, "vLLM": {**group.vllm_config, **group.vllm_options}}


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
    parser.add_argument("--out", type=Path, required=True, help="the folder of the reports")
    parser.add_argument("--commit", required=True, help="the commit that is measured, as `git rev-parse` gives it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a few short requests")
    try:
        Comparison(**vars(parser.parse_args())).measure()
    except GradusError as mistake:
        print(f"gradus: {mistake}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
