"""Gradus compared with vLLM: the same token ids on the same GPU within an hour, with a target for each case.

benchmarks/beside_vllm.py measures what is declared here. Two engines that each need the GPU's memory take turns as
processes: Gradus, vLLM and Gradus again, so that drift shows as a difference between the first and the last. Each
process warms up, as a rule with every full workload, then runs it several times. Sampling parameters are a group of
their own, measured separately and shown in a separate table. No torch here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.record.metrics import METRICS, middle, ranged, shown, spread
from gradus.bench.record.prose import speedup, times_floor
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.record.study import Rows
from gradus.bench.workloads import Workload, burst, conversations, single_stream
from gradus.config.options import FINAL
from gradus.models.config import ModelConfig
from gradus.models.families.records import write_config

NAME = "beside-vllm"
OURS, THEIRS = f"{FINAL}-prefix_cache", "vllm"
OUR_BLOCKS, THEIR_BLOCK = ("A1", "A2"), "B"
MAX_SEQUENCES = 256
TEMPERATURE = 0.6  # for many requests; a single one is greedy
REPEATS = 3

IN, OUT, DECODE, ANSWER, SECONDS = "prompt_tok_s", "output_tok_s", "decode_tok_s", "answer_ms", "seconds"

SAMPLING, QUANTIZED, STEADY, LONG = "sampling", "quantized", "steady", "long"
SECTIONS = ("", LONG, STEADY, SAMPLING, QUANTIZED)
"""Groups that reports and pages show in separate tables. The first has no name."""

AT_USUAL_TEMPERATURE = f"one request greedy, many at temperature {TEMPERATURE}, end-of-sequence ignored"


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that are measured together, by the same processes.

    interface: the way into our engine; see `gradus.bench.run.block`. sampled: how tokens are chosen, for reports.
    quantize: our matrices' scheme, or schemes by name patterns. kv_dtype: the type of our cache.
    vllm_config, vllm_options: entries of config.json and arguments that give vLLM the same number of bits.
    prefix_cache: on, on both sides, with pools of the same size.
    steady: the pool is full, too, before the clock starts; every round has new prompts.
    context: of both engines, in tokens; None is the shape's of `context_of`. sequences: the most at once.
    token_budget: most tokens per step of ours. budgets: vLLM's besides those of vllm_options, for the cases that
    compute prompts.
    enough_s: seconds of measured runs after which a case is not repeated again.
    """

    section: str = ""
    interface: str = "engine"
    sampled: str = AT_USUAL_TEMPERATURE
    quantize: str | Mapping[str, str] | None = None
    kv_dtype: str = "auto"
    vllm_config: Mapping[str, Any] = field(default_factory=dict)
    vllm_options: Mapping[str, Any] = field(default_factory=dict)
    prefix_cache: bool = False
    steady: bool = False
    context: int | None = None
    sequences: int = MAX_SEQUENCES
    token_budget: int | None = None
    budgets: tuple[int, ...] = ()
    enough_s: float | None = None

    @property
    def contender(self) -> str:
        """Our contender's name."""
        return FINAL if self.prefix_cache else OURS


def compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    """The config.json entry for matrices in compressed-tensors format, the head excepted."""
    kept = {"type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": kept | {"dynamic": False} | weights,
        "input_activations": activations and kept | {"dynamic": True} | activations,
    }
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }
    }


IN_FP8: dict[str, Any] = {"quantization": "fp8"}
IN_INT8 = compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}, {"num_bits": 8, "strategy": "token"})
IN_INT4 = compressed("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 128}, None)

GROUPS: dict[str, Group] = {
    "": Group(),
    SAMPLING: Group(
        SAMPLING,
        interface="LLM",
        sampled="temperature 1 and the parameters that a row names, no seed, end-of-sequence ignored",
    ),
    STEADY: Group(STEADY, interface="LLM", prefix_cache=True, steady=True),
    LONG: Group(
        LONG,
        prefix_cache=True,
        vllm_options={"max_num_batched_tokens": 16_384},
        context=131_072,
        sequences=32,
        token_budget=16_384,
        budgets=(8192,),
        enough_s=6.0,
    ),
    "fp8": Group(QUANTIZED, quantize="fp8", vllm_options=IN_FP8),
    "fp8-head": Group(QUANTIZED, quantize={"*": "fp8"}, vllm_options=IN_FP8),
    "int8": Group(QUANTIZED, quantize="int8", vllm_config=IN_INT8),
    "int4": Group(QUANTIZED, quantize="int4", vllm_config=IN_INT4),
    "int4-head": Group(QUANTIZED, quantize={"lm_head": "int8", "*": "int4"}, vllm_config=IN_INT4),
    "fp8-kv": Group(QUANTIZED, quantize="fp8", kv_dtype="fp8", vllm_options=IN_FP8 | {"kv_cache_dtype": "fp8"}),
}
"""Groups by their name in runs and cases. vLLM cannot quantize the head, even where ours is quantized."""


@dataclass(frozen=True, slots=True)
class Target:
    """A case's target. must, aim: multiples of vLLM's rate in the same run. floor_percent: also part of the aim.

    best: vLLM 0.26.0's best rate on an H200 in all earlier runs, in tokens per second; None without any. With short
    steps, a slow host slows vLLM more than us. So results count against the better of this rate and the one measured in
    the same run.
    """

    must: float
    aim: float
    best: float | None = None
    floor_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one model, whose `shape` both engines run with random weights.

    metric: what the target is about; of a latency, a target is how many times as short it is as vLLM's.
    group: of GROUPS. parameters: the fields of SamplingParams that the case is about; both engines use these names.
    """

    shape: str
    label: str
    workload: Workload
    target: Target
    metric: str = OUT
    group: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def table(self) -> str:
        if self.group == SAMPLING:
            return f"{self.shape}-{self.group}-{len(self.workload.jobs)}"
        return "-".join(part for part in (self.shape, self.group, TABLES[self.metric]) if part)

    @property
    def name(self) -> str:
        """A name that is unique in the group."""
        return f"{self.table}, {self.label}"

    @property
    def title(self) -> str:
        """The table's title."""
        if self.group == SAMPLING:
            return f"{self.shape}, batch {len(self.workload.jobs)}: tokens per second by sampling parameters"
        return f"{', '.join(part for part in (self.shape, self.group) if part)}: {TITLES[self.metric]}"

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling parameters for both engines."""
        if self.group == SAMPLING:
            return {"temperature": 1.0, **self.parameters}
        return {"temperature": 0.0 if len(self.workload.jobs) == 1 else TEMPERATURE}

    @property
    def hits(self) -> bool:
        """Whether its prompts are in the prefix cache when the clock starts."""
        return self.group == LONG and self.metric in (DECODE, ANSWER)

    @property
    def new_prompts(self) -> bool:
        """Whether no two rounds have prompts that begin alike, so that none of them hits."""
        return GROUPS[self.group].prefix_cache and not self.hits

    @property
    def budgets(self) -> tuple[int, ...]:
        """vLLM's other tokens per step. A prompt in the cache takes one short step at any of them."""
        return () if self.hits else GROUPS[self.group].budgets

    @property
    def theirs(self) -> tuple[str, ...]:
        """vLLM's contenders."""
        return (THEIRS, *map(at_budget, self.budgets))


def at_budget(tokens: int) -> str:
    """vLLM's contender with this many tokens per step."""
    return f"{THEIRS} {tokens}"


TABLES = {OUT: "", IN: "prefill", DECODE: "decode", ANSWER: "hit", SECONDS: "sessions"}
TITLES = {
    OUT: "tokens per second",
    IN: "prompts alone",
    DECODE: "tokens per second after the last first token",
    ANSWER: "one token after a prompt in the cache",
    SECONDS: "sessions of many turns",
}

POOL_TOKENS = 262_144
"""Minimum cache positions where the prefix cache is on."""

CONTEXTS = {"gpt2-124m": 1024}
"""Context length for both engines: GPT-2's own. The other models' workloads need no more than LONGEST."""
LONGEST = 9216

GPT2, QWEN, LLAMA_1B, LLAMA_8B = "gpt2-124m", "qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b"
GEMMA_1B, QWEN_EXPERTS = "gemma3-1b", "qwen3-30b-a3b"
MIXED = (100, 1024)

PARAMETERS: dict[str, dict[str, float]] = {
    "plain": {},
    "top-p 0.95, top-k 20": {"top_p": 0.95, "top_k": 20},
    "presence, frequency 0.5": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "repetition 1.1": {"repetition_penalty": 1.1},
    "5 log-probabilities": {"logprobs": 5},
}


def _quantized(group: str, alone: Target, many: Target, prompts: Target | None = None) -> Iterator[Case]:
    """Cases for quantized matrices: one request, many requests, and prompts."""
    yield Case(LLAMA_8B, "batch 1", single_stream(128, 256), alone, group=group)
    yield Case(LLAMA_8B, "batch 64", burst(64, 512, 256), many, group=group)
    if prompts is not None:
        yield Case(LLAMA_8B, "prefill", burst(8, 8192, 1), prompts, metric=IN, group=group)


def _long(shape: str, prompts: Target, sessions: Target) -> Iterator[Case]:
    """Cases of long contexts: prompts alone, decodes and one token after a hit, and the sessions of agents.

    Prompts of one seed begin alike, whatever their lengths. So new ones have a seed of their own for each case, and
    the hit is on the prompt of the decode before it.
    """
    for tokens in (8_000, 32_000, 64_000, 120_000):
        yield Case(shape, f"{tokens:,}", single_stream(tokens, 1, seed=tokens), prompts, metric=IN, group=LONG)
    yield Case(shape, "1 at 120,000", single_stream(120_000, 256), Target(1.0, 1.1), metric=DECODE, group=LONG)
    yield Case(shape, "hit of 120,000", single_stream(120_000, 1), Target(1.0, 1.5), metric=ANSWER, group=LONG)
    yield Case(shape, "8 at 32,000", burst(8, 32_000, 256), Target(1.0, 1.1), metric=DECODE, group=LONG)
    agents = conversations(8, 10, first=1500, question=1500, answer=200, pause=0.0, seed=1)
    yield Case(shape, "8 agents", agents, sessions, metric=SECONDS, group=LONG)


CASES = (
    Case(QWEN, "256 mixed", burst(256, MIXED, MIXED), Target(1.0, 1.25, 24_940, floor_percent=80)),
    Case(QWEN, "batch 1", single_stream(32, 512), Target(1.3, 2.5, 675)),
    Case(LLAMA_1B, "batch 1", single_stream(32, 512), Target(1.3, 1.8, 822, floor_percent=80)),
    Case(LLAMA_1B, "batch 64", burst(64, 512, 256), Target(0.95, 1.15, 27_693)),
    Case(LLAMA_1B, "batch 256", burst(256, 1024, 128), Target(0.95, 1.15, 21_493)),
    Case(LLAMA_8B, "batch 1", single_stream(128, 256), Target(1.0, 1.2, 211)),
    Case(LLAMA_8B, "batch 64", burst(64, 512, 256), Target(1.0, 1.1, 6_657)),
    Case(LLAMA_8B, "prefill", burst(8, 8192, 1), Target(0.9, 1.0, 38_600), metric=IN),
    Case(QWEN_EXPERTS, "batch 1", single_stream(128, 256), Target(1.4, 2.0, 239)),
    Case(QWEN_EXPERTS, "batch 8", burst(8, 128, 256), Target(1.15, 1.3, 854)),
    Case(QWEN_EXPERTS, "batch 32", burst(32, 256, 256), Target(1.03, 1.12, 1_939)),
    Case(QWEN_EXPERTS, "batch 128", burst(128, 256, 128), Target(1.03, 1.15, 5_730)),
    Case(QWEN_EXPERTS, "prefill", burst(8, 3500, 1), Target(0.95, 1.15, 66_500), metric=IN),
    Case(GPT2, "batch 1", single_stream(32, 500), Target(2.0, 6.0, 942)),
    Case(GPT2, "batch 64", burst(64, 32, 500), Target(1.0, 1.3, 38_274)),
    Case(GPT2, "batch 256", burst(256, 32, 500), Target(1.0, 1.5, 77_661)),
    Case(QWEN, "256 mixed", burst(256, MIXED, MIXED), Target(1.1, 1.5), group=STEADY),
    Case(LLAMA_1B, "batch 64", burst(64, 512, 256), Target(1.1, 1.5), group=STEADY),
    Case(GEMMA_1B, "batch 64", burst(64, 512, 256), Target(1.1, 1.5), group=STEADY),
    *(
        Case(QWEN, label, workload, Target(1.3, 1.7), group=SAMPLING, parameters=parameters)
        for workload in (single_stream(128, 256), burst(64, 64, 128), burst(256, 64, 128))
        for label, parameters in PARAMETERS.items()
    ),
    *_quantized("fp8", alone=Target(1.1, 1.25, 286), many=Target(1.0, 1.1, 8_980), prompts=Target(0.95, 1.05, 57_000)),
    Case(LLAMA_8B, "batch 1", single_stream(128, 256), Target(1.15, 1.35, 286), group="fp8-head"),
    *_quantized("int8", alone=Target(1.15, 1.35, 264), many=Target(1.0, 1.1, 9_076), prompts=Target(0.9, 1.0, 68_000)),
    *_quantized("int4", alone=Target(1.5, 1.8, 261), many=Target(1.05, 1.25, 6_481)),
    Case(LLAMA_8B, "batch 16", burst(16, 512, 256), Target(1.2, 1.4, 3_224), group="int4"),
    Case(LLAMA_8B, "batch 1", single_stream(128, 256), Target(1.65, 2.0, 261), group="int4-head"),
    Case(LLAMA_8B, "batch 64", burst(64, 4096, 256), Target(1.1, 1.3), metric=DECODE, group="fp8-kv"),
    *_long(LLAMA_1B, prompts=Target(0.97, 1.05), sessions=Target(1.25, 1.5)),
    *_long(LLAMA_8B, prompts=Target(0.99, 1.05), sessions=Target(1.02, 1.1)),
)

MOST_IDLE_US, AIM_IDLE_US = 100, 20
"""The GPU's longest acceptable wait for the host before a decode step of 256 sequences, in microseconds."""


def cases_of(shape: str, group: str = "") -> list[Case]:
    return [case for case in CASES if (case.shape, case.group) == (shape, group)]


def context_of(shape: str, group: str = "") -> int:
    return GROUPS[group].context or CONTEXTS.get(shape, LONGEST)


def vllm_config(config: ModelConfig, group: str = "") -> dict[str, Any]:
    """config.json for vLLM, in a spelling that every transformers understands.

    Llama 3's scaling of slow rotations is left out: it changes constants, and not how long anything takes.
    """
    common = write_config(config) | {"eos_token_id": config.eos_token_ids[0]}
    whole = [rope for rope, window in zip(config.ropes, config.windows, strict=True) if window is None]
    rope = whole[0] if whole else config.ropes[0]
    if rope is None:
        return common
    more = {"rope_theta": rope.theta, "torch_dtype": "bfloat16"}
    if len(set(config.ropes)) > 1:
        return common | more
    del common["rope_parameters"]
    return common | more | dict(GROUPS[group].vllm_config)


# -- as a benchmark, for reports ---------------------------------------------------------------------------------------


def benchmark_of(cases: tuple[Case, ...]) -> Benchmark:
    """Declare one table per model, and another for each model with prompt cases."""
    return Benchmark(
        question="The final engine and vLLM, on the same GPU and the same token ids: which is faster, and by how much?",
        prediction=(
            "Both read the same weights and the same keys and values, and both replay graphs; what differs is what a "
            "step takes beyond its bytes. The smaller the model and the batch, the more of a step that is, so a single "
            "stream of a small model should gain most. A crowd on a model of billions is bound by memory and matrix "
            "units on both sides, and prompts by attention kernels that were written by hand for this GPU on theirs. "
            "Sampling parameters should cost Gradus a little on the GPU and nothing on the host, since they are read "
            "from tables within the graph; vLLM launches its sampling step by step, and makes the objects of "
            "log-probabilities between steps. So the ratio should grow with what is asked for, and most with "
            "log-probabilities of many sequences. The longer a prompt, the more of its time is attention, so the "
            "longest prompts are the closest race. Decodes after such a prompt read keys and values at the memory's "
            "rate on both sides. An agent's turn is a short prompt and a few decodes on a long context: steps of a "
            "small batch again, so sessions should gain as single streams do."
        ),
        tables=tuple(_tables(cases)),
    )


def _tables(cases: tuple[Case, ...]) -> Iterator[Table]:
    for name in dict.fromkeys(case.table for case in cases):
        of_it = [case for case in cases if case.table == name]
        first = of_it[0]
        yield Table(
            name=name,
            title=first.title,
            axis="parameters" if first.group == SAMPLING else "workload",
            rows=tuple(Row(case.label, x, case.workload) for x, case in enumerate(of_it)),
            contenders=(*first.theirs, GROUPS[first.group].contender),
            metric=first.metric,
            columns=_columns(first),
            against=THEIRS,
            scale="names",
        )


def _columns(case: Case) -> tuple[str, ...]:
    if case.group == LONG:
        return ("hit", *(("ttft_ms", "itl_ms", "host_us") if case.metric in (DECODE, SECONDS) else ()), "steps")
    if case.metric == IN:
        return ("steps",)
    if GROUPS[case.group].interface == "LLM":
        return ("ttft_ms", "tpot_ms", "idle_us", "steps")
    return ("ttft_ms", "itl_ms", "itl_ms_p99", "host_us", "idle_us", "steps")


BENCHMARK = benchmark_of(CASES)

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
HOW_SAMPLING_IS_MEASURED = (
    "Sampling parameters: the same three blocks, in a run of their own. Temperature 1, and no seeds, so that vLLM "
    "takes its fastest path. Both sides run through their `LLM.generate`, so the objects that log-probabilities are "
    "read from are made within the measured time. vLLM chooses tokens with its own kernels: FlashInfer's sampler, "
    "which it prefers for top-p and top-k, is not installed. *Reached* goes by *ratio*, for there are no earlier runs."
)

HOW_QUANTIZED_IS_MEASURED = (
    "Fewer bits: the same three blocks, in runs of their own, with matrices in as many bits on both sides. vLLM makes "
    "fp8 of bfloat16 while it loads; int8 and int4 (groups of 128, symmetric) it has in the format of "
    "compressed-tensors, whose kernels are its fastest. The head stays in bfloat16, except in the rows named *head*: "
    "ours is fp8 there, or int8 beside int4, and vLLM has no such choice. *fp8-kv* has keys and values in 8 bits too, "
    "and counts from the last request's first token on."
)
HOW_THE_STEADY_STATE_IS_MEASURED = (
    "The steady state, as in a server that has been up for an hour: the same three blocks, in runs of their own, with "
    "the prefix cache on, on both sides. Both pools have the same number of pages, and rounds of prompts that are not "
    "measured fill them before the clock starts, so every page that a round takes must be evicted first. Each round "
    "has new prompts, which share nothing with those of earlier rounds. Both sides run through their `LLM.generate`. "
    "*Reached* goes by *ratio*, for there are no earlier runs."
)
HOW_LONG_CONTEXTS_ARE_MEASURED = (
    "Long contexts: the same three blocks, in runs of their own, with a context of 131,072 tokens and the prefix cache "
    "on, on both sides, in pools of the same size. Prompts alone are new in every round, so none of them hits. Before "
    "decodes, and before a hit, the prompt is in the cache; *prompt tokens hit* in the report is how much of it was. A "
    "hit asks for one token, so its time from the call to the answer is the time to the first token, the request's "
    "checks included. An agent's session has ten turns: each sends the conversation so far, with the tokens that this "
    "engine generated, and 1,500 new ones, as soon as the turn before has ended. Its seconds count from the first turn "
    "of all sessions to the last. Both have 16,384 tokens per step, their defaults through `LLM` on such a GPU; where "
    "prompts are computed, vLLM also has 8,192, a server's default, and its better median counts. Sessions are warmed "
    "up with two turns, prompts alone not again where one of their length has run. A case runs up to {repeats} times, "
    "and not again once its runs took {enough:g} s together. *Unit* is what both columns show: rates, or times, where "
    "less is better; *ratio* is always how many times as fast ours is."
)
HOW_SECTIONS_ARE_MEASURED = {
    LONG: HOW_LONG_CONTEXTS_ARE_MEASURED.format(repeats=REPEATS, enough=GROUPS[LONG].enough_s),
    STEADY: HOW_THE_STEADY_STATE_IS_MEASURED,
    SAMPLING: HOW_SAMPLING_IS_MEASURED,
    QUANTIZED: HOW_QUANTIZED_IS_MEASURED,
}


def sections_of(found: Results) -> list[str]:
    """The sections with measurements."""
    return [section for section in SECTIONS if any(True for _ in runs_of(found, section))]


def runs_of(found: Results, section: str) -> Iterator[Run]:
    return (run for run in found.runs if GROUPS[run.group].section == section)


def how(section: str) -> str:
    """The report's paragraph on the conditions."""
    if section in HOW_SECTIONS_ARE_MEASURED:
        return HOW_SECTIONS_ARE_MEASURED[section]
    return HOW_IT_IS_MEASURED.format(
        repeats=REPEATS, temperature=TEMPERATURE, memory="85 %", most=MAX_SEQUENCES, must=MOST_IDLE_US, aim=AIM_IDLE_US
    )


def summary(found: Results, section: str = "") -> Rows:
    """A section's cases, all models in one table: both rates, their ratio, the target, the share of the floor."""
    runs = {(run.model.removeprefix("random:"), run.group): run for run in runs_of(found, section)}
    cases = [case for case in CASES if (case.shape, case.group) in runs]
    rows = [(case, runs[case.shape, case.group]) for case in cases if GROUPS[case.group].section == section]
    return _tabled(rows)


def compared(cases: Sequence[Case], run: Run) -> Rows:
    """The same table for some cases of one run."""
    return _tabled([(case, run) for case in cases])


def _tabled(wanted: Sequence[tuple[Case, Run]]) -> Rows:
    found = [(case, run, cell) for case, run in wanted if (cell := run.cell(case.table, case.label))]
    rows, cases = [_row(case, cell, run) for case, run, cell in found], [case for case, _, _ in found]
    unknown = () if any(case.target.best for case in cases) else (TO_BEST, BEST)
    header = [name for name in (rows[0] if rows else ()) if name not in unknown]
    return header, [[row[name] for name in header] for row in rows]


TO_BEST, BEST = "to its best", "vLLM's best"


def skipped(found: Results, section: str = "") -> list[str]:
    """One line per run of a section without vLLM, and per workload that an engine could not run."""
    alone = [
        f"{run.title}: measured without vLLM."
        for run in runs_of(found, section)
        if not any(cell.entry(THEIRS) for cell in run.cells)
    ]
    return alone + [
        f"{cell.table}, {cell.row}: "
        f"{'vLLM' if entry.contender.startswith(THEIRS) else 'Gradus'} was not measured: {entry.skipped}."
        for run in runs_of(found, section)
        for cell in run.cells
        for entry in cell.entries
        if entry.skipped
    ]


def _row(case: Case, cell: Cell, run: Run) -> dict[str, str]:
    """The row's text, by column."""
    ours, theirs = cell.entry(GROUPS[case.group].contender), _fastest(case, cell)
    (table,) = _tables((case,))
    table = replace(table, against=theirs.contender if theirs else None)
    ratio = speedup(ours, cell, run, table) if ours else None
    share = times_floor(ours, table) if ours else None
    percent = 100 / share if share else None
    target = case.target
    unit = "" if case.group == LONG else " tok/s"
    to_best = None if ratio is None else ratio * _share_of_best(theirs, case)
    aim = f"{target.aim:g}×" + (f", {target.floor_percent:g} %" if target.floor_percent else "")
    return {
        "model": ", ".join(part for part in (case.shape, case.group) if part and part not in (SAMPLING, STEADY, LONG)),
        "workload": f"{case.label}: {cell.workload['what']}",
        **({"unit": METRICS[case.metric].heading} if case.group == LONG else {}),
        f"vLLM{unit}": ranged(_samples(theirs), case.metric),
        f"Gradus{unit}": ranged(_samples(ours), case.metric),
        "A1 · A2": " · ".join(middle(_samples(ours, block), case.metric) or "–" for block in OUR_BLOCKS),
        "ratio": "" if ratio is None else f"{ratio:.2f}×",
        TO_BEST: "" if to_best is None else f"{to_best:.2f}×",
        "must": f"{target.must:g}×",
        "aim": aim,
        "reached": "" if to_best is None else reached(target, to_best, percent),
        "of the floor": "" if percent is None else f"{percent:.0f} %",
        "GPU idle µs": middle(_samples(ours), "idle_us"),
        BEST: "" if target.best is None else shown(target.best),
    }


def reached(target: Target, ratio: float, percent: float | None) -> str:
    """The result as "aim", "must" or "no". An aim with a share of the floor requires both."""
    floor = target.floor_percent is None or (percent is not None and percent >= target.floor_percent)
    return "aim" if ratio >= target.aim and floor else "must" if ratio >= target.must else "no"


def _fastest(case: Case, cell: Cell) -> Entry | None:
    """vLLM's entry with the best median. The first one if none has samples."""
    entries = [entry for name in case.theirs if (entry := cell.entry(name))]
    measured = {entry.contender: found.median for entry in entries if (found := spread(entry.samples, case.metric))}
    if not measured:
        return entries[0] if entries else None
    best = max if METRICS[case.metric].more_is_better else min
    return cell.entry(best(measured, key=lambda name: measured[name]))


def _share_of_best(theirs: Entry | None, case: Case) -> float:
    """vLLM's rate over its best earlier rate; at most 1, and 1 without an earlier one."""
    measured = spread(_samples(theirs), case.metric)
    if measured is None or case.target.best is None:
        return 1.0
    return min(1.0, measured.median / case.target.best)


def _samples(entry: Entry | None, block: str = "") -> list[dict[str, Any]]:
    """The samples of a block, or of all."""
    return [sample for sample in entry.samples if block in ("", sample.get("block"))] if entry else []


def command(run: Run) -> str:
    """The command that measures a run again."""
    script = "python benchmarks/beside_vllm.py --vllm DIR --out my-reports --commit $(git rev-parse --short=12 HEAD)"
    return f"{script} --model {run.model.removeprefix('random:')}" + (f" --cases {run.group}" if run.group else "")
