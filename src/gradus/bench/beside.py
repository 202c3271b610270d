"""Gradus beside vLLM: the same token ids on the same GPU within the hour, and what is asked of the comparison.

Declared here, measured by benchmarks/beside_vllm.py: two engines that each want the GPU's memory take turns as
processes, Gradus, vLLM and Gradus again, so that a drift of the machine shows as a difference between the first and the
last. Each process warms up with every workload whole, then runs it several times. No torch here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradus.bench.declaration import Account, Benchmark, Row, Table
from gradus.bench.hugging_face import hugging_face_config
from gradus.bench.metrics import shown, spread
from gradus.bench.prose import speedup, times_floor
from gradus.bench.results import Cell, Entry, Results, Run
from gradus.bench.workloads import Workload, burst, single_stream
from gradus.config.options import FINAL
from gradus.models.config import ModelConfig

NAME = "beside-vllm"
OURS, THEIRS = f"{FINAL}-prefix_cache", "vllm"
OUR_BLOCKS, THEIR_BLOCK = ("A1", "A2"), "B"
MAX_SEQUENCES = 256
TEMPERATURE = 0.6  # of many requests; one alone is greedy
REPEATS = 3

IN, OUT = "prompt_tok_s", "output_tok_s"


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for. must, aim: how many times vLLM's rate, measured beside it. floor_percent: aimed at as well.

    best: of vLLM 0.26.0 on an H200 in all earlier runs, in tokens per second. Hosts differ, and a slow one slows vLLM
    more than us where a step is short; so what is reached counts against the better of this and what is beside us.
    """

    must: float
    aim: float
    best: float
    floor_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one model: `shape` is the one that both run with random weights."""

    shape: str
    label: str
    workload: Workload
    target: Target
    metric: str = OUT

    @property
    def table(self) -> str:
        return self.shape if self.metric == OUT else f"{self.shape}-prefill"

    @property
    def temperature(self) -> float:
        return 0.0 if len(self.workload.jobs) == 1 else TEMPERATURE


CONTEXTS = {"gpt2-124m": 1024}
"""Tokens that both engines have room for in a sequence: as GPT-2 was made for; the others' workloads need no more than
LONGEST."""
LONGEST = 9216

GPT2, QWEN, LLAMA_1B, LLAMA_8B = "gpt2-124m", "qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b"
MIXED = (100, 1024)

CASES = (
    Case(QWEN, "256 mixed", burst(256, MIXED, MIXED), Target(1.0, 1.25, 24_940, floor_percent=80)),
    Case(QWEN, "batch 1", single_stream(32, 512), Target(1.3, 2.5, 675)),
    Case(LLAMA_1B, "batch 1", single_stream(32, 512), Target(1.3, 1.8, 822, floor_percent=80)),
    Case(LLAMA_1B, "batch 64", burst(64, 512, 256), Target(0.95, 1.15, 27_693)),
    Case(LLAMA_1B, "batch 256", burst(256, 1024, 128), Target(0.95, 1.15, 21_493)),
    Case(LLAMA_8B, "batch 1", single_stream(128, 256), Target(1.0, 1.2, 211)),
    Case(LLAMA_8B, "batch 64", burst(64, 512, 256), Target(1.0, 1.1, 6_657)),
    Case(LLAMA_8B, "prefill", burst(8, 8192, 1), Target(0.9, 1.0, 38_600), metric=IN),
    Case(GPT2, "batch 1", single_stream(32, 500), Target(2.0, 6.0, 942)),
    Case(GPT2, "batch 64", burst(64, 32, 500), Target(1.0, 1.3, 38_274)),
    Case(GPT2, "batch 256", burst(256, 32, 500), Target(1.0, 1.5, 77_661)),
)

MOST_IDLE_US, AIM_IDLE_US = 100, 20
"""What the GPU may wait for the host before a decode step of 256 sequences, in microseconds."""


def cases_of(shape: str) -> list[Case]:
    return [case for case in CASES if case.shape == shape]


def context_of(shape: str) -> int:
    return CONTEXTS.get(shape, LONGEST)


def vllm_config(config: ModelConfig) -> dict[str, Any]:
    """config.json for vLLM, in a spelling that every transformers understands.

    Llama 3's scaling of slow rotations is left out: it changes constants, and not how long anything takes.
    """
    names = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    common = hugging_face_config(config) | {
        "architectures": [names[config.family]],
        "model_type": config.family,
        "eos_token_id": config.eos_token_ids[0],
    }
    if config.family == "gpt2":
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return common | dropouts | {"n_ctx": config.context_length, "activation_function": "gelu_new"}
    assert config.rope is not None
    del common["rope_parameters"]
    return common | {"rope_theta": config.rope.theta, "hidden_act": "silu", "torch_dtype": "bfloat16"}


# -- as a benchmark, for reports ---------------------------------------------------------------------------------------


def benchmark_of(cases: tuple[Case, ...], accounts: Mapping[str, Account]) -> Benchmark:
    """A table for each model, and one for each that is asked for prompts' tokens."""
    return Benchmark(
        question="The final engine and vLLM, on the same GPU and the same token ids: which is faster, and by how much?",
        prediction=(
            "Both read the same weights and the same keys and values, and both replay graphs; what differs is what a "
            "step takes beyond its bytes. The smaller the model and the batch, the more of a step that is, so a single "
            "stream of a small model should gain most. A crowd on a model of billions is bound by memory and matrix "
            "units on both sides, and prompts by attention kernels that were written by hand for this GPU on theirs."
        ),
        tables=tuple(_tables(cases)),
        accounts=accounts,
    )


def _tables(cases: tuple[Case, ...]) -> Iterator[Table]:
    for name in dict.fromkeys(case.table for case in cases):
        of_it = [case for case in cases if case.table == name]
        prefill = of_it[0].metric == IN
        yield Table(
            name=name,
            title=f"{of_it[0].shape}: {'prompts alone' if prefill else 'tokens per second'}",
            axis="workload",
            rows=tuple(Row(case.label, x, case.workload) for x, case in enumerate(of_it)),
            contenders=(THEIRS, OURS),
            metric=of_it[0].metric,
            columns=("steps",) if prefill else ("ttft_ms", "itl_ms", "itl_ms_p99", "host_us", "idle_us", "steps"),
            against=THEIRS,
            scale="names",
        )


ACCOUNTS: dict[str, Account] = {
    "h200": Account(
        explains=(
            "All that must be reached is, and three aims are: GPT-2's sixty-four and two hundred and fifty-six at once "
            "run at {random:gpt2-124m, bfloat16: gpt2-124m/batch 64/final-prefix_cache/speedup} and {random:gpt2-124m, "
            "bfloat16: gpt2-124m/batch 256/final-prefix_cache/speedup} times vLLM's rate, Llama-3.2-1B's sixty-four at "
            "{random:llama-3.2-1b, bfloat16: llama-3.2-1b/batch 64/final-prefix_cache/speedup}. These ratios flatter "
            "us where a step is short: the host of these runs was a slow one, and vLLM, whose steps wait for it, has "
            "done better elsewhere (*to its best*, by which is judged what is reached). One request alone gains most "
            "where a step has the fewest bytes, as predicted: {random:gpt2-124m, bfloat16: gpt2-124m/batch "
            "1/final-prefix_cache/speedup} times with GPT-2, {qwen3-0.6b/batch 1/final-prefix_cache/speedup} with "
            "Qwen3-0.6B, {random:llama-3.2-1b, bfloat16: llama-3.2-1b/batch 1/final-prefix_cache/speedup} with "
            "Llama-3.2-1B, {random:llama-3.1-8b, bfloat16: llama-3.1-8b/batch 1/final-prefix_cache/speedup} with "
            "Llama-3.1-8B. Large crowds come close to a tie, for both sides read the same keys and values and multiply "
            "the same prompts: {qwen3-0.6b/256 mixed/final-prefix_cache/speedup} times with Qwen3's mixed crowd, "
            "{random:llama-3.2-1b, bfloat16: llama-3.2-1b/batch 256/final-prefix_cache/speedup} with Llama-3.2-1B's "
            "two hundred and fifty-six, {random:llama-3.1-8b, bfloat16: llama-3.1-8b/batch "
            "64/final-prefix_cache/speedup} with Llama-3.1-8B's sixty-four. What the GPU waits for its host before a "
            "step of two hundred and fifty-six decodes is {qwen3-0.6b/256 mixed/final-prefix_cache/idle_us} µs with "
            "Qwen3, {random:llama-3.2-1b, bfloat16: llama-3.2-1b/batch 256/final-prefix_cache/idle_us} with Llama, and "
            "{random:gpt2-124m, bfloat16: gpt2-124m/batch 256/final-prefix_cache/idle_us} at most with GPT-2, whose "
            "step takes {random:gpt2-124m, bfloat16: gpt2-124m/batch 256/final-prefix_cache/itl_ms} ms, of which the "
            "host needs {random:gpt2-124m, bfloat16: gpt2-124m/batch 256/final-prefix_cache/host_us} µs."
        ),
        loses=(
            "Eight aims are missed. Alone, launches and small products do not stream at the memory's speed: GPT-2 is "
            "{random:gpt2-124m, bfloat16: gpt2-124m/batch 1/final-prefix_cache/times_floor} times its floor, "
            "Qwen3-0.6B {qwen3-0.6b/batch 1/final-prefix_cache/times_floor}, and only Llama-3.1-8B comes near, "
            "{random:llama-3.1-8b, bfloat16: llama-3.1-8b/batch 1/final-prefix_cache/times_floor}. In the mixed crowd "
            "attention is some two thirds of the time, and reads at more than nine tenths of a copy's bandwidth "
            "(`benchmarks/paged_attention.json`): the aim would need all the rest in half of its time, or narrower "
            "keys and values. Of Llama-3.2-1B's two hundred and fifty-six, most of the floor is the prompts' products, "
            "which we leave to cuBLAS. Prompts alone are slower than vLLM's, {random:llama-3.1-8b, bfloat16: "
            "llama-3.1-8b-prefill/prefill/final-prefix_cache/speedup} times its rate: attention in Triton and cuBLAS's "
            "products, against kernels written by hand for this GPU."
        ),
    ),
}
"""What is to be said of the results, by hardware."""

BENCHMARK = benchmark_of(CASES, ACCOUNTS)

HOW_IT_IS_MEASURED = (
    "Three blocks, each a process of its own on the same GPU: Gradus (A1), vLLM, Gradus again (A2); each is built once "
    "for all of a model's workloads, warmed up with them whole, then timed {repeats} times per workload. The same "
    "token ids and output lengths on both sides; one request is greedy, many are sampled at temperature {temperature}; "
    "end-of-sequence ignored, prefix cache off. vLLM has its own best settings for throughput: CUDA graphs and "
    "torch.compile on, {memory} of the memory. *GPU idle* is how long the GPU waits for the host at most before a full "
    "step of decodes, on average: at {most} sequences at most {must} µs are asked for, {aim} are the aim. *vLLM's "
    "best* is the highest median that it showed on such a GPU before, on whatever host; *to its best* is our rate over "
    "the better of its two, and that is what *reached* goes by."
)

Rows = tuple[list[str], list[list[str]]]
"""A table: its header and its rows."""


def how() -> str:
    """What a report says of the conditions."""
    return HOW_IT_IS_MEASURED.format(
        repeats=REPEATS, temperature=TEMPERATURE, memory="85 %", most=MAX_SEQUENCES, must=MOST_IDLE_US, aim=AIM_IDLE_US
    )


def summary(found: Results) -> Rows:
    """Every case of every model in one table: both sides, the ratio, what was asked for, the share of the floor."""
    header = [
        "model",
        "workload",
        "vLLM tok/s",
        "Gradus tok/s",
        "A1 · A2",
        "ratio",
        "to its best",
        "must",
        "aim",
        "reached",
        "of the floor",
    ]
    header += ["GPU idle µs", "vLLM's best"]
    runs = {run.model.removeprefix("random:"): run for run in found.runs}
    rows = [
        _row(case, cell, runs[case.shape])
        for case in CASES
        if case.shape in runs and (cell := runs[case.shape].cell(case.table, case.label))
    ]
    return header, rows


def skipped(found: Results) -> list[str]:
    """One line for each workload that one side could not run."""
    return [
        f"{run.model.removeprefix('random:')}, {cell.row}: "
        f"{'vLLM' if entry.contender == THEIRS else 'Gradus'} was not measured: {entry.skipped}."
        for run in found.runs
        for cell in run.cells
        for entry in cell.entries
        if entry.skipped
    ]


def _row(case: Case, cell: Cell, run: Run) -> list[str]:
    ours, theirs = cell.entry(OURS), cell.entry(THEIRS)
    table = next(table for table in BENCHMARK.tables if table.name == case.table)
    ratio = speedup(ours, cell, run, table) if ours else None
    share = times_floor(ours, table) if ours else None
    percent = 100 / share if share else None
    target = case.target
    to_best = None if ratio is None else ratio * min(1.0, _median(theirs, case.metric) / target.best)
    aim = f"{target.aim:g}×" + (f", {target.floor_percent:g} %" if target.floor_percent else "")
    idle = spread(ours.samples, "idle_us") if ours else None
    return [
        case.shape,
        f"{case.label}: {cell.workload['what']}",
        _rate(theirs, case.metric),
        _rate(ours, case.metric),
        " · ".join(_of_block(ours, case.metric, block) for block in OUR_BLOCKS),
        "" if ratio is None else f"{ratio:.2f}×",
        "" if to_best is None else f"{to_best:.2f}×",
        f"{target.must:g}×",
        aim,
        "" if to_best is None else reached(target, to_best, percent),
        "" if percent is None else f"{percent:.0f} %",
        "" if idle is None else shown(idle.median),
        shown(target.best),
    ]


def reached(target: Target, ratio: float, percent: float | None) -> str:
    """ "aim", "must" or "no"; an aim that names a share of the floor wants both."""
    floor = target.floor_percent is None or (percent is not None and percent >= target.floor_percent)
    return "aim" if ratio >= target.aim and floor else "must" if ratio >= target.must else "no"


def _median(entry: Entry | None, metric: str) -> float:
    measured = spread(entry.samples, metric) if entry else None
    return measured.median if measured else 0.0


def _rate(entry: Entry | None, metric: str) -> str:
    measured = spread(entry.samples, metric) if entry else None
    if measured is None:
        return "–"
    middle, low, high = (shown(value, metric) for value in (measured.median, measured.low, measured.high))
    return middle if low == high else f"{middle} ({low}–{high})"


def _of_block(entry: Entry | None, metric: str, block: str) -> str:
    of_it = [sample for sample in entry.samples if sample.get("block") == block] if entry else []
    measured = spread(of_it, metric)
    return shown(measured.median, metric) if measured else "–"
