"""`gradus bench sampling`: the cost of each sampling parameter relative to the plain draw, through `LLM`.

One engine per model serves everything, so only the requests differ. A round runs the plain draw, every parameter, and
the plain draw again, on the same token ids; the next round runs in reverse. So drift affects both sides of a ratio. A
first, untimed round with short answers warms up.

The cost of a cut by probability depends on how peaked the distribution is, and random weights give flat ones. A
temperature of 0.1 makes logits ten times as peaked and leaves all other work unchanged. So parameters that narrow the
choice are measured at both temperatures, each relative to the plain draw at its own.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradus.bench.declare.suites import cache_for
from gradus.bench.measure.drive import check_completions
from gradus.bench.measure.fingerprint import fingerprint, hardware_name
from gradus.bench.measure.settings import Settings, Watcher
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Run
from gradus.bench.statistics import significant
from gradus.bench.studies.sampling_report import EVERYTHING, NAME, PLAIN, TABLES
from gradus.bench.workloads import SEED, Workload, burst, single_stream
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.loading import Progress
from gradus.models.precision import resolve_device
from gradus.text.llm import LLM


@dataclass(frozen=True, slots=True)
class Size:
    """A batch: requests at once, their tokens in and out, and the timed rounds."""

    batch: int
    prompt: int
    output: int
    rounds: int

    @property
    def workload(self) -> Workload:
        alone = self.batch == 1
        return single_stream(self.prompt, self.output) if alone else burst(self.batch, self.prompt, self.output)


SIZES = {
    "cuda": (Size(1, 128, 256, rounds=4), Size(64, 64, 128, rounds=3), Size(256, 64, 128, rounds=3)),
    "cpu": (Size(1, 32, 32, rounds=3), Size(8, 32, 32, rounds=3)),
}
QUICK = {
    "cuda": (Size(1, 16, 16, rounds=2), Size(64, 16, 16, rounds=2)),
    "cpu": (Size(1, 4, 3, rounds=2), Size(8, 4, 3, rounds=2)),
}
WARM_UP = 16  # tokens of an answer
BIASED = 20  # tokens
NARROWING = {"top_k", "top_p", "min_p"}

Asked = dict[str, Any]
"""Fields of SamplingParams."""


def parameters(vocab_size: int) -> dict[str, Asked]:
    """The parameters besides temperature and seed, by their name in the report; the plain draw is first."""
    three = {"top_k": 50, "top_p": 0.9, "min_p": 0.05}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.5}
    repetition = {"repetition_penalty": 1.1}
    biases = {"logit_bias": {vocab_size * index // BIASED: 1.0 for index in range(BIASED)}}
    logprobs = {"logprobs": 5}
    return {
        PLAIN: {},
        "top-p 0.95": {"top_p": 0.95},
        "top-k 50": {"top_k": 50},
        "top-k 20, top-p 0.95": {"top_k": 20, "top_p": 0.95},
        "min-p 0.05": {"min_p": 0.05},
        "top-k 50, top-p 0.9, min-p 0.05": three,
        "presence and frequency 0.5": penalties,
        "repetition 1.1": repetition,
        f"bias on {BIASED} tokens": biases,
        "log-probabilities of 5": logprobs,
        EVERYTHING: three | penalties | repetition | biases | logprobs,
    }


def asked_at(table: str, vocab_size: int) -> dict[str, Asked]:
    """A table's parameters with its temperature; tables after the first have only those that narrow the choice."""
    every = parameters(vocab_size)
    if table != next(iter(TABLES)):
        every = {name: asked for name, asked in every.items() if name == PLAIN or NARROWING & asked.keys()}
    temperature = float(table.removeprefix("temperature-"))
    return {name: {"temperature": temperature, **asked} for name, asked in every.items()}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(settings: Settings, out: Path, watcher: Watcher, progress: Progress | None = None) -> Path:
    """Run every size at every temperature; the results are written after each. Returns the file.

    Raises ConfigError for settings of other benchmarks, and as `LLM` does.
    """
    if settings.tables or settings.contenders or settings.resume or not settings.peers:
        raise ConfigError(
            f"`gradus bench {NAME}` measures one engine, all of it: it takes --model, --device, --dtype, --quantize, "
            "--repeats, --quick and --out"
        )
    llm, sizes = _open(settings, progress)
    try:
        run, hardware = _begin(llm, settings), hardware_name(llm.device)
        for size in sizes:
            prompts = [arrival.prompt for arrival in size.workload.arrivals(llm.config.vocab_size)]
            _warm_up(llm, size, prompts)
            for table in TABLES:
                run.put(_cell(llm, size, table, prompts, watcher))
                results.update(out, hardware, NAME, run)
        return results.path(out, hardware, NAME)
    finally:
        gc.unfreeze()  # otherwise the engine's memory would never be freed


def is_measured(out: Path, hardware: str, model: str, dtype: str, commit: str) -> bool:
    """Whether this commit's results have every GPU size at every temperature."""
    file = results.path(out, hardware, NAME)
    run = results.read(file).run(model, dtype) if file.exists() else None
    if run is None or run.settings["commit"] != commit:
        return False
    return all(run.cell(table, str(size.batch)) for size in SIZES["cuda"] for table in TABLES)


def _open(settings: Settings, progress: Progress | None) -> tuple[LLM, Sequence[Size]]:
    """An engine with room for exactly these sizes."""
    sizes = (QUICK if settings.quick else SIZES)[resolve_device(settings.device).type]
    if settings.repeats:
        sizes = tuple(replace(size, rounds=settings.repeats) for size in sizes)
    works = [size.workload for size in sizes]
    llm = LLM(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        max_sequences=max(size.batch for size in sizes),
        context_length=max(work.longest for work in works),
        cache_tokens=cache_for(works),
        switch_off=("prefix_cache",),  # otherwise a run would find the previous one's prompts
        progress=progress,
    )
    return llm, sizes


def _begin(llm: LLM, settings: Settings) -> Run:
    return Run(
        model=llm.checkpoint.name,
        dtype=llm.precision.name,
        device=llm.device.type,
        fingerprint=fingerprint(llm.device, quick=settings.quick),
        settings={
            **settings.of_run(),
            "prefix cache": "off",
            "precision": llm.precision.reason,
            **settings.of_quantized(llm.precision),
        },
    )


def _warm_up(llm: LLM, size: Size, prompts: Sequence[Sequence[int]]) -> None:
    """Run everything that happens only the first time at this size."""
    short = replace(size, output=min(size.output, WARM_UP))
    for asked in asked_at(next(iter(TABLES)), llm.config.vocab_size).values():
        llm.generate(prompts, _params(short, asked))


def _cell(llm: LLM, size: Size, table: str, prompts: Sequence[Sequence[int]], watcher: Watcher) -> Cell:
    work, every = size.workload, asked_at(table, llm.config.vocab_size)
    cell = Cell(
        table,
        str(size.batch),
        size.batch,
        size.batch,
        work.record() | {"logits_bytes": size.batch * llm.config.vocab_size * llm.precision.activations.itemsize},
        [Entry(name) for name in every],
    )
    watcher.cell(f"{TABLES[table]}, batch {size.batch}", size.rounds * (len(every) + 1))
    for name in _order(list(every), size.rounds):
        entry = cell.entry(name)
        assert entry is not None
        entry.samples.append(_timed(llm, prompts, _params(size, every[name])))
        watcher.run_done()
    return cell


def _order(names: Sequence[str], rounds: int) -> Iterator[str]:
    """The plain draw, the others, the plain draw again; every other round backwards."""
    plain, *others = names
    for turn in range(rounds):
        yield from (plain, *(reversed(others) if turn % 2 else others), plain)


def _params(size: Size, asked: Asked) -> list[SamplingParams]:
    """Sampling parameters for each request, with a seed of its own."""
    return [SamplingParams(max_tokens=size.output, ignore_eos=True, seed=SEED + i, **asked) for i in range(size.batch)]


def _timed(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> dict[str, Any]:
    """Time the call until it returns. Raises ContenderFailed unless every request got all it asked for."""
    start = time.perf_counter()
    completions = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    check_completions(completions, params)
    return {
        "seconds": significant(seconds, 5),
        "output_tokens": sum(len(completion.token_ids) for completion in completions),
    }
