"""Measures a long prompt among conversations that decode while it is read: what it costs them, and what they cost it.

    PYTHONPATH=src:. python3 benchmarks/long_beside_short.py --shape llama-3.2-1b --out "$OUT"/long_beside_short.json
    PYTHONPATH=src:. python3 benchmarks/long_beside_short.py --simulated --shape llama-3.1-8b --out simulated.json
    PYTHONPATH=src:. python3 benchmarks/long_beside_short.py --quick --out quick.json

Thirty conversations decode at any time: when one ends, the next begins. After a while a prompt of 120,000 tokens
arrives. One engine serves all ways in turn, which differ in step target and slowdown; first the prompt is read alone.
Rows have the time per token (TPOT) of each conversation's tokens before the prompt's arrival and until its first token,
in milliseconds, their ratios, the gaps between tokens, the prompt's time to first token (TTFT) in seconds, and the
number of its chunks. A prompt that is not read after `--seconds` is cancelled, and how far it got is reported.
`--simulated` lets the roofline be the clock and needs no GPU; `--quick` runs a tiny model. `--mixes` answers another
question by the roofline: what do a server's defaults cost the throughput of loads that are always full?
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.predict.roofline import Machine
from gradus.bench.predict.simulation import VOCABULARY, Simulation
from gradus.bench.run.script import ran
from gradus.bench.statistics import distribution, percentile, significant
from gradus.config.options import SERVED_SLOWDOWN, SERVED_STEP_TARGETS, SETTINGS
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result
from gradus.engine.request import Request, SamplingParams
from gradus.models.config import even_position
from gradus.models.shapes import SHAPES
from gradus.scheduling.step_target import StepTarget

if TYPE_CHECKING:  # it imports torch
    from gradus import LLM

STREAMS, PROMPT, ANSWER, LONG = 30, 500, 400, 120_000
TOKEN_BUDGET = 8192
WARM, BEFORE = 1.0, 2.0  # answers' worth of steps: the first conversations end one by one, the next are measured
FEWEST = 50  # gaps of a conversation within a phase, for its time per token to count
MEASURED = Machine(bandwidth=4.2e12, rate=7.7e14)
"""An H200's rates as its benchmarks record them (`benchmarks/answered/prefill.json`), rounded."""
SERVED = (SERVED_STEP_TARGETS["cuda"], SERVED_SLOWDOWN)
MIXES = {
    "chat": (64, 400, ((32, 1024),), (16, 256)),
    "prompts of 4,000": (64, 200, ((3000, 5000),), (100, 300)),
    "prompts of 12,000": (32, 96, ((8000, 15_000),), (100, 300)),
    "prompts of 30,000": (16, 48, ((25_000, 35_000),), (100, 300)),
    "prompts of 60,000": (16, 40, ((55_000, 65_000),), (100, 300)),
    "chat, one in 150 of 100,000": (32, 400, (*[(200, 500)] * 149, (100_000, 100_000)), (100, 300)),
}
"""Loads of Llama-3.1-8B: clients, requests in all, lengths of prompts (one of them by chance), of answers."""


class Watched:
    """A runner that counts the chunks of one request. chunks: their lengths."""

    def __init__(self, runner: Any, name: str) -> None:
        self._runner, self._name, self.chunks = runner, name, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, plan: Plan) -> Result:
        self.chunks += [len(span.tokens) for span in plan.spans if span.sequence and self._named(span.sequence)]
        result: Result = self._runner.run(plan)
        return result

    def _named(self, sequence: Any) -> bool:
        return bool(sequence.request_id == self._name)


class Crowd:
    """Conversations that decode, one after the other in each of `streams` places, while an engine steps.

    clock: in seconds. times: when each request's tokens came.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float], asked: argparse.Namespace, label: str) -> None:
        self.engine, self.clock, self.asked, self.label = engine, clock, asked, label
        self.times: dict[str, list[float]] = {}
        self._draw, self._count = Random(label), 0

    def ask(self, name: str, prompt: int, answer: int) -> None:
        vocabulary = self.engine.limits.vocab_size
        tokens = [int(self._draw.random() * vocabulary) for _ in range(prompt)]
        params = SamplingParams(max_tokens=answer, ignore_eos=True, seed=0)
        self.times[name] = []
        self.engine.submit(Request.create(name, tokens, params, self.engine.limits))

    def begin(self) -> None:
        """Start the first conversations, whose answers differ in length, so that they end one by one."""
        streams = self.asked.streams
        for place in range(streams):
            self._converse(max(1, self.asked.answer * (place + 1) // streams))

    def _converse(self, answer: int) -> None:
        self._count += 1
        self.ask(f"{self.label} {self._count}", self.asked.prompt, answer)

    def step(self) -> None:
        outputs = list(self.engine.step())
        now = self.clock()
        for output in outputs:
            self.times[output.request_id] += [now] * len(output.tokens)
            if output.finish_reason is not None and output.request_id.startswith(f"{self.label} "):
                self._converse(self.asked.answer)

    def tokens(self) -> int:
        return sum(map(len, self.times.values()))

    def run(self, answers: float) -> None:
        """Step until this many answers' worth of tokens have come for each place."""
        wanted = self.tokens() + answers * self.asked.answer * self.asked.streams
        while self.tokens() < wanted:
            self.step()


def measured(
    engine: Engine, clock: Callable[[], float], asked: argparse.Namespace, name: str, alone: float
) -> dict[str, Any]:
    """Measure one way. alone: the prompt's time to first token without conversations, in seconds."""
    crowd, long = Crowd(engine, clock, asked, name), f"long, {name}"
    crowd.begin()
    crowd.run(WARM)
    began = clock()
    crowd.run(BEFORE)
    engine.runner = watched = Watched(engine.runner, long)
    arrived = clock()
    crowd.ask(long, asked.long, 1)
    while not crowd.times[long] and clock() < arrived + asked.seconds:
        crowd.step()
    ended = clock()
    engine.runner = watched._runner
    streams = {each: times for each, times in crowd.times.items() if each != long}
    before, beside = phase(streams, began, arrived), phase(streams, arrived, ended)
    read = sum(watched.chunks) if not crowd.times[long] else asked.long
    for each in crowd.times:
        engine.cancel(each)
    while engine.has_work:
        engine.step()
    return {
        "way": name,
        "before": before,
        "beside": beside,
        "tpot_ratio": {each: ratio(beside["tpot_ms"], before["tpot_ms"], each) for each in ("p50", "p99")},
        "long_tokens": read,
        "long_ttft_s": significant(ended - arrived) if crowd.times[long] else None,
        "long_seconds": significant(ended - arrived),
        "long_alone_s": significant(alone),
        "chunks": len(watched.chunks),
        "chunk_tokens": distribution(watched.chunks),
    }


def phase(streams: dict[str, list[float]], began: float, ended: float) -> dict[str, Any]:
    """Summarize the tokens of conversations between two moments."""
    within = [[each for each in times if began <= each <= ended] for times in streams.values()]
    gaps = [[1e3 * (later - sooner) for sooner, later in itertools.pairwise(times)] for times in within]
    each = [sum(mine) / len(mine) for mine in gaps if len(mine) >= FEWEST] or [
        sum(mine) / len(mine) for mine in gaps if mine
    ]
    return {
        "conversations": len(each),
        "tpot_ms": summary(each),
        "gap_ms": summary([gap for mine in gaps for gap in mine]),
        "output_tok_s": significant(sum(map(len, within)) / (ended - began)),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    return {f"p{share}": significant(percentile(values, share)) for share in (50, 99, 100)} if values else {}


def ratio(later: dict[str, float], sooner: dict[str, float], name: str) -> float | None:
    return significant(later[name] / sooner[name], 3) if later and sooner else None


def read_alone(engine: Engine, clock: Callable[[], float], asked: argparse.Namespace) -> float:
    """Read the long prompt alone, twice; the first time, kernels may be compiled. Returns the seconds of the second."""
    for number in range(2):
        crowd, name = Crowd(engine, clock, asked, f"alone {number}"), f"long alone {number}"
        began = clock()
        crowd.ask(name, asked.long if number else asked.long // 8, 1)
        while not crowd.times[name]:
            crowd.step()
    return clock() - began


def ways(asked: argparse.Namespace) -> Iterator[tuple[str, tuple[float, float] | None]]:
    """Name each way, with its step target and slowdown."""
    if not asked.only_served:
        yield "no step target", None
    for slowdown in (SERVED[1], *asked.slowdowns):
        yield f"slowdown {slowdown:g}", (SERVED[0], slowdown)


def loaded(asked: argparse.Namespace) -> "LLM":
    """Load the model as a server does, which times steps by the GPU's clock and does not lengthen them."""
    from gradus import LLM

    target, slowdown = SERVED
    cache = None if asked.quick else asked.long + 2 * asked.streams * (asked.prompt + asked.answer) + 4096
    return LLM(
        f"random:{asked.shape}",
        device=asked.device,
        cache_tokens=cache,
        switch_off=("prefix_cache",),
        step_target=target,
        slowdown=slowdown,
    )


def rows(asked: argparse.Namespace, made: dict[str, Any]) -> None:
    """Measure every way and write the results after each."""
    config = SHAPES[asked.shape]
    clock: Callable[[], float]
    if asked.simulated:
        simulation = Simulation(256, 1 << 15, token_budget=TOKEN_BUDGET, shape=asked.shape, machine=MEASURED)
        engine, clock = simulation.engine, simulation.clock
    else:
        llm = loaded(asked)
        engine, clock = llm.engine, time.perf_counter
        made |= fingerprint(llm.device)
    scheduler: Any = getattr(engine.scheduler, "_scheduler", engine.scheduler)  # the simulation watches it
    alone = read_alone(engine, clock, asked)
    for name, way in ways(asked):
        scheduler.target = way and StepTarget(way[0], even_position(config), clock, slowdown=way[1])
        scheduler.left_cost = scheduler.left_long = math.inf  # as without a target
        made["rows"].append(measured(engine, clock, asked, name, alone))
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
        print(json.dumps(made["rows"][-1]), flush=True)


def mixed(name: str, way: tuple[float, float] | None) -> dict[str, Any]:
    """Simulate a load in which each client asks again as soon as it has its answer."""
    clients, count, prompts, answer = MIXES[name]
    target, slowdown = way or (None, math.inf)
    simulation = Simulation(
        256, 1 << 16, token_budget=TOKEN_BUDGET, machine=MEASURED, step_target=target, slowdown=slowdown
    )
    engine, clock, draw = simulation.engine, simulation.clock, Random(name)
    asked, times = dict[str, float](), dict[str, list[float]]()

    def ask() -> None:
        request = str(len(asked))
        tokens = [int(draw.random() * VOCABULARY) for _ in range(draw.randint(*draw.choice(prompts)))]
        params = SamplingParams(max_tokens=draw.randint(*answer), ignore_eos=True, seed=0)
        asked[request], times[request] = clock.now, []
        engine.submit(Request.create(request, tokens, params, engine.limits))

    for _ in range(clients):
        ask()
    while engine.has_work:
        for output in engine.step():
            times[output.request_id] += [clock.now] * len(output.tokens)
            if output.finish_reason is not None and len(asked) < count:
                ask()
    return {
        "load": name,
        "way": "no step target" if way is None else "served",
        "output_tok_s": significant(sum(map(len, times.values())) / clock.now),
        "ttft_s": summary([each[0] - asked[request] for request, each in times.items()]),
        "tpot_ms": summary([1e3 * (each[-1] - each[0]) / (len(each) - 1) for each in times.values()]),
    }


def table(found: Sequence[dict[str, Any]]) -> str:
    """Format results of several shapes for docs/design/p06.md."""
    lines = [
        "| | TPOT before, p50 | while it is read: p50, p99 | gaps, p99 | the prompt's TTFT, alone | chunks |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        for row in each["rows"]:
            before, beside, times = row["before"], row["beside"], row["tpot_ratio"]
            read = "" if row["long_ttft_s"] else "over "  # it was cancelled
            lines.append(
                f"| {each['shape']}, {row['way']} | {before['tpot_ms']['p50']:.2f} ms | {times['p50']:.4g} ×, "
                f"{times['p99']:.4g} × | {beside['gap_ms']['p99']:.0f} ms | {read}{row['long_seconds']:.1f}, "
                f"{row['long_alone_s']:.1f} s | {row['chunks']} |"
            )
    return "\n".join(lines)


def table_of_mixes(found: dict[str, Any]) -> str:
    """Format the simulated loads for docs/design/p06.md: without a step target, and as served."""
    lines = ["| load | output tok/s, served | TPOT p50 | TPOT p99 | TTFT p50 |", "|---|---|---|---|---|"]
    for without, served in zip(found["rows"][::2], found["rows"][1::2], strict=True):
        rates = f"{without['output_tok_s']:.0f}, {served['output_tok_s']:.0f}"
        tpot = [f"{without['tpot_ms'][p]:.1f}, {served['tpot_ms'][p]:.1f} ms" for p in ("p50", "p99")]
        ttft = f"{without['ttft_s']['p50']:.2g}, {served['ttft_s']['p50']:.2g} s"
        lines.append(f"| {without['load']} | {rates} | {' | '.join(tpot)} | {ttft} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.2-1b", choices=[*SHAPES], metavar="SHAPE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of a conversation's prompt")
    parser.add_argument("--answer", type=int, default=ANSWER, help="tokens of its answer")
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the long prompt")
    parser.add_argument("--slowdowns", type=float, nargs="*", default=[], help="further ways")
    parser.add_argument("--only-served", action="store_true", help="leave the way without a step target out")
    parser.add_argument("--seconds", type=float, default=45.0, help="after which a long prompt is cancelled")
    parser.add_argument("--simulated", action="store_true", help="let the roofline be the clock")
    parser.add_argument("--mixes", nargs="*", choices=[*MIXES], metavar="LOAD", help="loads to simulate; none: all")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for tests")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    for slowdown in asked.slowdowns:
        SETTINGS["slowdown"].check(slowdown)
    if asked.quick:
        asked.shape = "tiny-llama"
        asked.streams, asked.prompt, asked.answer, asked.long = 3, 20, 60, 300
    made: dict[str, Any] = {
        "commit": asked.commit or commit(), "shape": asked.shape, "clock": "roofline" if asked.simulated else "wall",
        "streams": asked.streams, "prompt": asked.prompt, "answer": asked.answer, "long": asked.long, "rows": [],
    }  # fmt: skip
    if asked.mixes is not None:
        made = {"commit": made["commit"], "shape": "llama-3.1-8b", "clock": "roofline", "rows": []}
        made["rows"] = [mixed(name, way) for name in asked.mixes or MIXES for way in (None, SERVED)]
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
        return 0
    rows(asked, made)
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
