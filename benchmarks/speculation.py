"""Measure what speculation gains or costs on real weights and text, with one engine per drafter in one process.

    export PYTHONPATH=src:.
    python3 -m gradus.training smollm2-135m --kind medusa --minutes 4 --out "$OUT"/medusa
    python3 -m gradus.training smollm2-135m --kind eagle --minutes 4 --out "$OUT"/eagle
    python3 benchmarks/speculation.py --heads "$OUT"/medusa --heads "$OUT"/eagle --out "$OUT"/reports --commit "$COMMIT"

All engines serve the same prompts greedily, from benchmarks/prompts: texts to be copied (benchmarks/README.md says how
they were chosen), chat requests, functions to be completed, and open questions. They take turns: each round
runs all of them, in the opposite order of the round before. So slow drifts affect all of them alike, and every rate
is compared with that of the engine without drafts in the same round. Each engine chooses its own number of drafts,
unless --drafts sets it. `--draft MODEL` drafts with a smaller model, and `--draft-quantize int8` adds an engine that
has this model in 8 bits.

The script also computes how often n-grams and heads would be right on the generated texts, position by position. At
the end, engines that always verify the full number of drafts show whether as many are accepted as that predicts. With
`--vllm DIR` (see beside_vllm.py), vLLM then serves the prompts to copy and the open ones, one and eight at a time,
without drafts and with its own n-grams, in a process each. Each cell is written as soon as it is measured.
`--quick` is a rehearsal: --quick --model random:tiny-llama --device cpu.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gradus.bench.command import report
from gradus.bench.contenders.transformers import build_model
from gradus.bench.measure.fingerprint import commit as current_commit
from gradus.bench.measure.fingerprint import fingerprint, hardware_name
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Run
from gradus.bench.run import blocks
from gradus.bench.run.script import ran
from gradus.bench.statistics import distribution, significant
from gradus.bench.studies.beside import vllm_config
from gradus.bench.studies.speculation_report import NAME, NONE, TABLES, VLLM, VLLM_NGRAM, draft_model
from gradus.bench.workloads import Arrival
from gradus.config.options import HEADS, USUAL_DRAFTS
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError, GradusError
from gradus.kernels.step.ngram_reference import look_up
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from gradus.speculative.heads_drafter import draft_head
from gradus.speculative.heads_folder import read_config, read_heads
from gradus.text.llm import LLM
from gradus.training.agreement import Agreement, Places, head_drafts
from gradus.training.writing import Conversation

PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class Size:
    """Prompts that run `batch` at a time, and the tokens of each answer."""

    table: str
    batch: int
    requests: int
    output: int


SIZES = (
    Size("copy", 1, 6, 160),
    Size("chat", 1, 6, 160),
    Size("open", 1, 6, 160),
    Size("code", 1, 6, 160),
    Size("copy", 8, 16, 160),
    Size("open", 8, 16, 160),
    Size("open", 32, 64, 160),
    Size("open", 128, 128, 160),
)
QUICK = (Size("copy", 1, 1, 24), Size("chat", 1, 1, 12), Size("open", 2, 2, 12))
QUICK_PROMPT = 24  # tokens
ROUNDS = {False: 5, True: 2}  # by --quick
LONGEST = {False: 640, True: 96}  # tokens of a sequence, by --quick
READ = 8  # texts of a cell for which the heads' drafts are computed
WARM_UP = 48  # tokens of each answer, until kernels are compiled and the number of drafts has settled


VLLM_OPTIONS: dict[str, dict[str, Any]] = {
    VLLM: {},
    VLLM_NGRAM: {
        "speculative_config": {
            "method": "ngram_gpu",  # "ngram" runs on the host, and needs numba
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        }
    },
}
VLLM_CELLS = {(table, batch) for table in ("copy", "open") for batch in (1, 8)}
VLLM_MEMORY = 0.5  # of the GPU's memory: our idle model keeps its share
VLLM_SECONDS = 200
VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")


def texts(name: str) -> list[str]:
    """Read the prompts of a file: one per line, or separated by lines of dashes."""
    text = (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip()
    return text.split("\n----\n") if "\n----\n" in text else text.split("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--heads", action="append", default=[], help="a folder of trained heads; may be repeated")
    parser.add_argument("--draft", help="a draft model")
    parser.add_argument(
        "--draft-quantize", action="append", default=[], metavar="SCHEME",
        help="the same draft model in fewer bits as well, as int8 or int4; may be repeated",
    )  # fmt: skip
    parser.add_argument("--drafts", type=int, help="the number of drafts per step; by default each engine chooses")
    parser.add_argument("--texts", action="append", choices=[*TABLES], help="only these; may be repeated")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in; without it, vLLM is left out")
    parser.add_argument("--seconds", type=float, default=230, help="begin no cell after this many")
    parser.add_argument("--out", type=Path, default=Path("my-reports"))
    parser.add_argument("--commit", help="the commit measured, where git cannot tell")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        file = measure(asked)
    except GradusError as mistake:
        print(f"speculation: {mistake}", file=sys.stderr)
        return 2
    print(file)
    return 0


def measure(asked: argparse.Namespace) -> Path:
    began = time.monotonic()
    bench = Bench(asked)
    rounds = asked.rounds or ROUNDS[asked.quick]
    for size in bench.sizes:
        if time.monotonic() - began > asked.seconds:
            print(f"no time for {size.table}, batch {size.batch}, and what follows", flush=True)
            break
        cell = bench.cell(size, rounds)
        bench.run.put(cell)
        results.update(asked.out, bench.hardware, NAME, bench.run)
        print(f"{time.monotonic() - began:5.0f} s  {said(cell)}", flush=True)
    bench.llms.clear()  # the next parts build their own engines
    for name in bench.predictable:
        if time.monotonic() - began > asked.seconds:
            print(f"no time for {name} in every step, and what follows", flush=True)
            break
        bench.draft_in_every_step(name)
        results.update(asked.out, bench.hardware, NAME, bench.run)
        print(f"{time.monotonic() - began:5.0f} s  {name} in every step", flush=True)
    if asked.vllm:
        for name in VLLM_OPTIONS:
            bench.beside(name, asked.vllm, asked.out, rounds)
            results.update(asked.out, bench.hardware, NAME, bench.run)
    report(asked.out, say=lambda _: None)
    return results.path(asked.out, bench.hardware, NAME)


def said(cell: Cell) -> str:
    """Summarize a cell in one line."""
    rates = {
        entry.contender: sum(sample["output_tokens"] for sample in entry.samples)
        / sum(sample["seconds"] for sample in entry.samples)
        for entry in cell.entries
        if entry.samples
    }
    rates_text = ", ".join(f"{name} {rate:,.0f} tok/s ({rate / rates[NONE]:.2f}×)" for name, rate in rates.items())
    return f"{_label(cell)}: {rates_text}"


class Bench:
    """The engines, the bare model, and their measurements."""

    def __init__(self, asked: argparse.Namespace) -> None:
        wanted = asked.texts or TABLES
        self.sizes = [size for size in (QUICK if asked.quick else SIZES) if size.table in wanted]
        self.asked = asked
        self.checkpoint = checkpoint = open_checkpoint(asked.model)
        self.quick = asked.quick
        self.folders = {read_config(Path(folder)).shape.kind: Path(folder) for folder in asked.heads}
        speculate = {NONE: None, "ngram": "ngram"}
        speculate |= {kind: f"{HEADS}{folder}" for kind, folder in self.folders.items()}
        schemes = {draft_model(scheme): scheme for scheme in (None, *asked.draft_quantize)}
        if asked.draft:
            speculate |= dict.fromkeys(schemes, f"draft:{asked.draft}")
        elif asked.draft_quantize:
            raise ConfigError("--draft-quantize does nothing without --draft: name a draft model, or leave it out")
        self.speculate = speculate
        most = max(size.batch for size in self.sizes)
        self.llms = {
            name: self._engine(name, most, asked.drafts if how else None, schemes.get(name))
            for name, how in speculate.items()
        }
        first = self.llms[NONE]
        self.prompts = {table: self._encoded(first, table) for table in ("copy", "chat", "open", "code")}
        self.hardware = hardware_name(first.device)
        self.device, self.precision = first.device, first.precision
        self.run = Run(
            model=checkpoint.name,
            dtype=first.precision.name,
            device=first.device.type,
            fingerprint=fingerprint(first.device, quick=asked.quick),
            settings={
                "commit": asked.commit or current_commit(),
                "quick": asked.quick,
                "drafts": asked.drafts or "chosen by each engine",
                "prefix cache": "off",
                "sampling": "greedy, end-of-sequence ignored",
                "precision": first.precision.reason,
                "heads": ", ".join(self.folders) or "none",
                "draft model": asked.draft or "none",
            },
            profiles=[{"heads": kind, **read_config(folder).trained} for kind, folder in self.folders.items()],
        )

    @cached_property
    def model(self) -> Model:
        """Load the bare model as the engines have it, on first use only, since the engines need the memory."""
        return load_model(
            self.checkpoint, dtype=self.precision.activations, device=self.device, linear=self.precision.linear
        )

    def _engine(self, name: str, sequences: int, drafts: int | None, draft_quantize: str | None = None) -> LLM:
        longest = LONGEST[self.quick]
        return LLM(
            self.checkpoint, device=self.asked.device, dtype=self.asked.dtype, speculate=self.speculate[name],
            drafts=drafts, draft_quantize=draft_quantize, max_sequences=sequences, context_length=longest,
            cache_tokens=sequences * longest, switch_off=("prefix_cache",),
        )  # fmt: skip

    def _encoded(self, llm: LLM, table: str) -> list[list[int]]:
        tokens = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts(table)]
        return [each[-QUICK_PROMPT:] for each in tokens] if self.quick else tokens

    def _asked(self, table: str, requests: int) -> list[list[int]]:
        asked = self.prompts[table]
        if requests > len(asked):  # repeat no prompt while there are others
            asked = [*asked, *self.prompts["chat"], *self.prompts["code"]]
        return asked[:requests]

    def cell(self, size: Size, rounds: int) -> Cell:
        prompts = self._asked(size.table, size.requests)
        cell = Cell(
            size.table, str(size.batch), size.batch, size.batch,
            {
                "what": f"{size.requests} prompts, {size.batch} at a time, {size.output} tokens each",
                "requests": size.requests,
                "prompt_tokens": sum(map(len, prompts)),
                "output_tokens": size.requests * size.output,
            },
            [Entry(name) for name in self.llms],
        )  # fmt: skip
        for llm in self.llms.values():
            served(llm, prompts, size.batch, min(WARM_UP, size.output))
        right: list[list[int]] = []
        for turn in range(rounds):
            names = list(self.llms)
            for name in reversed(names) if turn % 2 else names:
                sample, answers = served(self.llms[name], prompts, size.batch, size.output)
                right = right or (answers if name == NONE else [])
                if right:
                    same = sum(mine == theirs for mine, theirs in zip(answers, right, strict=True))
                    sample["same"] = significant(same / len(right), 3)
                entry = cell.entry(name)
                assert entry is not None
                entry.samples.append(sample)
        for entry in cell.entries:
            entry.prediction = self._agreement(entry.contender, prompts, right)
        return cell

    def beside(self, name: str, vllm: Path, out: Path, rounds: int) -> None:
        """Add vLLM's samples for the same prompts to our engines' samples, or the reason why there are none."""
        cells = [cell for cell in self.run.cells if (cell.table, cell.batch) in VLLM_CELLS]
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            self._save(work / "model")
            asked = {
                "config": str(work / "model"),
                "load_format": "auto",
                "memory_share": VLLM_MEMORY,
                "dtype": str(self.model.dtype).removeprefix("torch."),
                "context": LONGEST[self.quick],
                "max_sequences": max((cell.batch for cell in cells), default=1),
                "repeats": rounds,
                "vllm_options": VLLM_OPTIONS[name],
                "cases": [self._case(cell) for cell in cells],
            }
            side = blocks.vllm(vllm, str(VLLM_BLOCK), seconds=VLLM_SECONDS)
            found, why = blocks.run_block(side, asked, out / "logs" / f"{NAME}-{name}.txt")
        if "version" in found:
            self.run.fingerprint["versions"]["vllm"] = found["version"]
        for cell in cells:
            measured = found.get("cases", {}).get(_label(cell), {})
            failed = None if measured.get("samples") else measured.get("failed") or why or "its process ended before"
            cell.entries.append(Entry(name, samples=measured.get("samples", []), skipped=failed))
        print(f"{name}: {why or 'done'}", *(said(cell) for cell in cells), sep="\n  ", flush=True)

    def _case(self, cell: Cell) -> dict[str, Any]:
        prompts = self._asked(cell.table, cell.workload["requests"])
        output = cell.workload["output_tokens"] // len(prompts)
        arrivals = [Arrival(0.0, tuple(prompt), output) for prompt in prompts]
        return blocks.case_of(_label(cell), arrivals, {"temperature": 0.0}, at_once=cell.batch)

    def _save(self, folder: Path) -> None:
        """Save the weights that we run in the format that vLLM reads."""
        build_model(self.checkpoint, self.model.config, self.model.dtype, self.model.device).save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(vllm_config(self.model.config)))

    @property
    def predictable(self) -> list[str]:
        """Name the drafters whose drafts are computed at every position."""
        return ["ngram", *self.folders]

    def draft_in_every_step(self, name: str) -> None:
        """Compare the drafts accepted with those predicted, with the full number in every step of each text's smallest
        batch."""
        gc.collect()  # free the previous engines, or two are in memory
        smallest = {cell.table: cell for cell in sorted(self.run.cells, key=lambda cell: -cell.batch)}
        llm = self._engine(name, max(cell.batch for cell in smallest.values()), self._most(name))
        for cell in smallest.values():
            prompts = self._asked(cell.table, cell.workload["requests"])
            sample, answers = served(llm, prompts, cell.batch, cell.workload["output_tokens"] // len(prompts))
            steps = [text.in_steps() for text in self._places(name, prompts, answers)]
            verified, stood = (torch.stack(each).sum(0).tolist() for each in zip(*steps, strict=True))
            entry = cell.entry(name)
            assert entry is not None and entry.prediction is not None
            entry.prediction["every step"] = {
                **{count: sample["speculation"][count] for count in ("drafted", "accepted")},
                "predicted": {"drafted": verified, "accepted": stood},
            }

    def _most(self, name: str) -> int:
        """Return the number of drafts per step."""
        return read_config(self.folders[name]).shape.drafts if name in self.folders else USUAL_DRAFTS

    def _agreement(self, name: str, prompts: list[list[int]], answers: list[list[int]]) -> dict[str, Any] | None:
        """Compute how often drafts would be right on these texts."""
        if name not in self.predictable:
            return None
        texts = len(answers) if name == "ngram" else READ
        found = Agreement.of(self._places(name, prompts[:texts], answers[:texts]), self._most(name))
        return {"right": _rounded(found.right), "stands": _rounded(found.stands)}

    def _places(self, name: str, prompts: list[list[int]], answers: list[list[int]]) -> Iterator[Places]:
        """Yield the drafts that the drafter would propose for each text."""
        if name == "ngram":
            return ngram_drafts(prompts, answers)
        config = read_config(self.folders[name])
        heads = read_heads(self.folders[name], config, dtype=torch.float32, device=self.model.device)
        spoken = [
            Conversation(number, (*prompt, *answer), len(prompt), True)
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
        head = draft_head(self.model, config.shape.vocabulary)
        return head_drafts(self.model, heads, head, [spoken], config.shape.drafts)


def _label(cell: Cell) -> str:
    return f"{cell.table}, batch {cell.row}"


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def ngram_drafts(prompts: list[list[int]], answers: list[list[int]]) -> Iterator[Places]:
    """Yield the drafts that n-grams would propose for each text."""
    for prompt, answer in zip(prompts, answers, strict=True):
        whole = torch.tensor([*prompt, *answer])
        lengths = torch.arange(len(prompt) + 1, len(whole) - USUAL_DRAFTS + 1)
        if len(lengths):
            drafts = look_up(whole.int().expand(len(lengths), -1), lengths, USUAL_DRAFTS)
            yield Places(drafts, whole.unfold(0, USUAL_DRAFTS, 1)[lengths])


def served(llm: LLM, prompts: list[list[int]], batch: int, output: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Serve all prompts, `batch` at a time, and return the sample and the answers."""
    params = SamplingParams(max_tokens=output, ignore_eos=True)
    before = llm.metrics().speculation
    answers: list[list[int]] = []
    first: list[float] = []
    between: list[float] = []
    gc.collect()
    began = time.perf_counter()
    for start in range(0, len(prompts), batch):
        submitted = time.perf_counter()
        said = {llm.submit(prompt, params): list[int]() for prompt in prompts[start : start + batch]}
        last: dict[str, float] = {}
        while llm.has_work:
            deltas = llm.step()
            now = time.perf_counter()
            for delta in deltas:
                if not delta.token_ids:
                    continue
                if delta.request_id in last:
                    between.append(now - last[delta.request_id])
                else:
                    first.append(now - submitted)
                last[delta.request_id] = now
                said[delta.request_id] += delta.token_ids
        answers += said.values()
    seconds = time.perf_counter() - began
    sample = {
        "seconds": significant(seconds, 5),
        "output_tokens": sum(map(len, answers)),
        "ttft_ms": distribution([1e3 * each for each in first], 3),
        "itl_ms": distribution([1e3 * each for each in between], 3),
    }
    after = llm.metrics().speculation
    if after is not None and before is not None:
        sample["speculation"] = {
            "steps": after.steps - before.steps,
            "tokens": after.tokens - before.tokens,
            "drafted": [new - old for new, old in zip(after.drafted, before.drafted, strict=True)],
            "accepted": [new - old for new, old in zip(after.accepted, before.accepted, strict=True)],
        }
    return sample, answers


if __name__ == "__main__":
    assert set(TABLES) >= {size.table for size in SIZES}
    sys.exit(ran(main))
