"""The repository's own measurements next to the formula: how far may an estimate be off?

Every run of the final engine counts that a results file of a GPU, `benchmarks/families*.json` or
`benchmarks/tensor_parallel.json` has, with the workload that it ran, and on a CPU the decode benchmark's. Left out are
runs whose subject is sampling parameters or speculation, and the one with keys and values in 8 bits: its record has
only the time after the last first token.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import gradus
from gradus.bench.predict.roofline import Machine, Widths, streamed_parameters
from gradus.bench.record import results
from gradus.bench.sizing.cards import CARDS
from gradus.bench.sizing.pace import ON_CPU, ON_GPU, Pace, Speed
from gradus.bench.studies import beside
from gradus.bench.workloads import Workload, burst, single_stream
from gradus.models.config import ModelConfig
from gradus.models.shapes import SHAPES
from gradus.parallel.place import Place

ROOT = Path(gradus.__file__).parents[2]
BITS = {"": 16.0, "fp8": 8.0, "int8": 8.0, "int4": 4.0 + 16 / 128}
"""Bits per weight, scales included: int4 has one of 16 bits per 128 weights."""
TWICE = {"fp8", "int8"}
"""Schemes whose products run at twice the rate of bfloat16's, by the data sheets."""
BUDGET = 8192  # tokens of a step, the default on a GPU
SAME_SHAPE = {"qwen2.5-coder-1.5b": "qwen2.5-1.5b"}
FAMILIES = {"batch 1": single_stream(32, 384), "batch 32": burst(32, 128, 256)}
UNSEEN = "families_sized"
"""Runs that were made after the formula's numbers had been fitted, to test them."""
RANKS_PLAYED = {"batch 1": single_stream(128, 256), "batch 64": burst(64, 512, 256), "prefill": burst(8, 8192, 1)}
ON_CPU_PLAYED = {
    "one alone": single_stream(32, 96),
    "one, long context": single_stream(968, 32),
    "8 at once": burst(8, 32, 32),
    "16 at once": burst(16, 32, 24),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. hardware: "h200", "h100" or "cpu". scheme: "" in 16 bits. seconds: its median. source: the file.

    ranks: GPUs that the model is divided among.
    """

    hardware: str
    model: str
    scheme: str
    label: str
    workload: Workload
    seconds: float
    machine: Machine
    source: str
    ranks: int = 1

    @property
    def config(self) -> ModelConfig:
        """The model, or one rank's part of it."""
        whole = SHAPES[self.model]
        return whole if self.ranks == 1 else Place(0, self.ranks).shard(whole).config

    @property
    def tokens(self) -> int:
        """The tokens that its rate counts: generated ones, or the prompts' where each asks for one token."""
        prompts = all(job.output == 1 for job in self.workload.jobs)
        return self.workload.prompt_tokens if prompts else self.workload.output_tokens

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def formula(self) -> float:
        """The formula's tokens per second for the same run."""
        return self.tokens / formula_seconds(self)

    @property
    def ratio(self) -> float:
        """The formula's rate over the measured one."""
        return self.formula / self.rate

    @property
    def kind(self) -> str:
        """The class of residuals that it belongs to."""
        if self.hardware == "cpu":
            return "CPU"
        if self.ranks > 1:
            return "two GPUs, not fitted to"
        if UNSEEN in self.source:
            return "GPU, not fitted to"
        if self.scheme:
            return "GPU, fewer bits"
        if self.tokens == self.workload.prompt_tokens:
            return "GPU, prompts alone"
        count = len(self.workload.jobs)
        return "GPU, one sequence" if count == 1 else f"GPU, {'8 to 64' if count <= 64 else '128 to 256'} sequences"


@cache
def formula_seconds(measured: Measured) -> float:
    """The formula's time for a run."""
    kv, pace = (4, ON_CPU) if measured.hardware == "cpu" else (2, ON_GPU)
    return speed_of(measured, kv, pace).played(measured.workload, beside.MAX_SEQUENCES, BUDGET)


def speed_of(measured: Measured, kv: int, pace: Pace) -> Speed:
    """The speed of a record's model. The output head stays in 16 bits."""
    config, bits = measured.config, BITS[measured.scheme]
    head = config.vocab_size * config.hidden_size / streamed_parameters(config)
    width = ((1 - head) * bits + head * 16) / 8
    faster = 2.0 if measured.scheme in TWICE and kv == 2 else 1.0
    return Speed(config, Widths(width, kv), measured.machine, pace, faster, bool(measured.scheme), measured.ranks)


def measured(root: Path = ROOT) -> list[Measured]:
    """All runs, or none where the repository is not there, as in an installed wheel."""
    found = [
        *_beside(root / "reports"),
        *_families(root / "benchmarks"),
        *_ranks(root / "benchmarks"),
        *_decoding(root / "reports"),
    ]
    return [one for one in found if one.model in SHAPES]


def _beside(reports: Path) -> Iterator[Measured]:
    for hardware in ("h200", "h100"):
        file = results.path(reports, hardware, beside.NAME)
        for run in results.read(file).runs if file.exists() else ():
            for case in beside.cases_of(run.model.removeprefix("random:"), run.group):
                cell = run.cell(case.table, case.label)
                entry = cell and cell.entry(beside.GROUPS[case.group].contender)
                scheme = case.group if case.group in BITS else ""
                plain = case.group in (*BITS, beside.STEADY) and not case.parameters
                if entry and entry.samples and plain:
                    seconds = median(sample["seconds"] for sample in entry.samples)
                    machine = _machine(run.fingerprint["rates"])
                    label = f"{case.label}, steady" if case.group == beside.STEADY else case.label
                    source = f"reports/{hardware}/{beside.NAME}"
                    yield Measured(hardware, case.shape, scheme, label, case.workload, seconds, machine, source)


def _families(benchmarks: Path) -> Iterator[Measured]:
    for name in ("families", "families_experts", UNSEEN):
        file = benchmarks / f"{name}.json"
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": ()}
        for row in content["rows"]:
            cases = {case.label: case.workload for case in beside.cases_of(row["model"])}
            workload = (cases if name == "families_experts" else FAMILIES).get(row["workload"])
            if workload is None or "quantize" in row or "failed" in row:
                continue
            prompts = all(job.output == 1 for job in workload.jobs)
            seconds = (workload.prompt_tokens if prompts else workload.output_tokens) / median(row["tok_s"])
            machine = _machine(content["rates"])
            yield Measured(
                "h200", row["model"], "", row["workload"], workload, seconds, machine, f"benchmarks/{name}.json"
            )


def _ranks(benchmarks: Path) -> Iterator[Measured]:
    file = benchmarks / "tensor_parallel.json"
    parts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["parts"] if file.exists() else {}
    for part in [parts[name] for name in ("one", "two") if name in parts]:
        for label, workload in RANKS_PLAYED.items():
            prompts = all(job.output == 1 for job in workload.jobs)
            seconds = (workload.prompt_tokens if prompts else workload.output_tokens) / part[label]["tok_s"]
            machine = CARDS["h100"].machine  # whose rates the file does not have
            source = "benchmarks/tensor_parallel.json"
            yield Measured("h100", "llama-3.1-8b", "", label, workload, seconds, machine, source, part["gpus"])


def _decoding(reports: Path) -> Iterator[Measured]:
    file = results.path(reports, "cpu", "cpu-decode")
    for run in results.read(file).runs if file.exists() else ():
        for cell in run.cells:
            for entry in cell.entries:
                name, _, scheme = entry.contender.partition(":")
                if name == "final" and entry.samples and cell.row in ON_CPU_PLAYED:
                    seconds = median(sample["seconds"] for sample in entry.samples)
                    rates = run.fingerprint["rates"]
                    workload = ON_CPU_PLAYED[cell.row]
                    source, model = "reports/cpu/cpu-decode", SAME_SHAPE.get(run.model, run.model)
                    yield Measured("cpu", model, scheme, cell.row, workload, seconds, _machine(rates), source)


def _machine(rates: dict[str, float]) -> Machine:
    fastest = max(rates["float32_tflop_s"], rates["bfloat16_tflop_s"])
    return Machine(rates["read_gb_s"] * 1e9, fastest * 1e12)


# -- how far off -------------------------------------------------------------------------------------------------------


def factor(ratios: Sequence[float]) -> float:
    """The factor within which all ratios are, either way."""
    return max(max(ratios), 1 / min(ratios))


def residuals(found: Sequence[Measured]) -> list[tuple[str, int, float, float]]:
    """For each class of runs: its name, how many, the median ratio, and the factor within which all are."""
    kinds = dict.fromkeys(sorted(one.kind for one in found))
    ratios = {kind: [one.ratio for one in found if one.kind == kind] for kind in kinds}
    return [(kind, len(of), math.exp(median(map(math.log, of))), factor(of)) for kind, of in ratios.items()]


def table(found: Sequence[Measured]) -> str:
    """The table of residuals on the page about operating a server."""
    rows = (f"| {kind} | {count} | {middle:.2f} | {most:.2f} |" for kind, count, middle, most in residuals(found))
    return "\n".join(
        ["| runs | | formula over measured, median | all within a factor of |", "|---|---|---|---|", *rows]
    )


if __name__ == "__main__":
    print(table(measured()))
