"""One engine's block of a comparison, in its own process: `python -P block.py ASKED.json FOUND.json`.

ASKED is what `gradus.bench.run.blocks` writes, for every side alike:

    model, device, dtype, contender, context, max_sequences, cache_tokens
    quantize, kv_dtype    as in `LLM`: how matrices, and keys and values, are kept
    interface      "engine": steps driven directly; "LLM": `LLM.generate`, which makes log-probabilities' objects, too
    repeats        how often each case is timed
    enough_s       seconds of timed runs after which a case is not repeated again; may be left out
    thorough       whether to report the machine, each case's floor, and the GPU's idle time
    quick          a rehearsal
    cases          label, prompts (token ids), max_tokens (one per prompt), sampling (parameters, alike in both),
                   follows (for each prompt, None, or the index of the turn before, whose whole sequence precedes it),
                   unmeasured (runs before those that are timed: none, one, or enough to fill the cache's pages),
                   warm_up (how many prompts, from the first on, an unmeasured run has),
                   new_prompts (whether no two runs have prompts that begin alike),
                   keep_prefixes (whether "engine" runs find what earlier ones left in the prefix cache),
                   watch_idle (whether a thorough block on a GPU watches how long the GPU is idle, in another run)

FOUND is written after every case, so a failure keeps the earlier ones: hardware, fingerprint, dtype, precision, and
each case's samples and prediction, or the reason for having none.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gradus.bench.contenders.workbench import EngineContender, Room, Workbench
from gradus.bench.declare.declaration import switched
from gradus.bench.measure.drive import check_completions, drive
from gradus.bench.measure.fingerprint import fingerprint, hardware_name, machine_of
from gradus.bench.measure.idle import idle_watch
from gradus.bench.predict.prediction import predict
from gradus.bench.record.metrics import prediction_json
from gradus.bench.registry import policy_of
from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import Arrival, Job, Workload
from gradus.engine.engine import Engine
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.quantization.mix import Mix
from gradus.text.llm import LLM

EIGHT_BITS = {"int8", "fp8", "fp8-block"}
"""Schemes that tensor cores multiply at twice the rate of bfloat16."""

Case = dict[str, Any]
"""One of ASKED's cases."""


def run_block(asked: dict[str, Any], found_file: Path) -> None:
    """Measure every case. Raises ConfigError for an unknown model or contender."""
    bench = Workbench.open(asked["model"], asked["device"], asked["dtype"], quantize=asked["quantize"])
    found: dict[str, Any] = {
        "hardware": hardware_name(bench.device),
        "device": bench.device.type,
        "dtype": bench.dtype,
        "precision": bench.precision.reason,
        "cases": {},
    }
    if asked["thorough"]:
        found["fingerprint"] = fingerprint(bench.device, quick=asked["quick"])
    room = Room(
        asked["context"], asked["max_sequences"], asked["cache_tokens"], asked.get("token_budget"),
        kv_dtype=asked["kv_dtype"],
    )  # fmt: skip
    start = time.perf_counter()
    interface = INTERFACES[asked["interface"]](asked["contender"], bench, room)
    say(f"built in {time.perf_counter() - start:.1f} s")
    for case in asked["cases"]:
        kept: dict[str, Any] = {"samples": []}
        found["cases"][case["label"]] = kept
        try:
            idle = asked["thorough"] and case["watch_idle"] and bench.device.type == "cuda"
            _measure(interface, case, kept, asked["repeats"], asked.get("enough_s"), idle=idle)
        except Exception as error:  # the other cases may still run
            kept["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if asked["thorough"]:
            kept["prediction"] = _floor(bench, asked, room, case, found["fingerprint"])
        _write(found_file, found)
        say(f"{case['label']}: {kept.get('failed') or [sample['seconds'] for sample in kept['samples']]}")


def _measure(
    interface: "Interface", case: Case, kept: dict[str, Any], repeats: int, enough_s: float | None, *, idle: bool
) -> None:
    rounds = map(partial(_round, case), itertools.count())
    for _ in range(case["unmeasured"]):  # compiles and allocates for every shape
        interface.sample(next(rounds))
    samples: list[dict[str, Any]] = []
    while len(samples) < repeats and sum(sample["seconds"] for sample in samples) < (enough_s or math.inf):
        samples.append(interface.sample(next(rounds)))
    kept["samples"] = samples
    if idle:
        with idle_watch(interface.engine) as watch:
            interface.sample(next(rounds))
        kept["samples"][-1]["idle_us"] = distribution(watch.idle_us())


def _round(case: Case, number: int) -> Case:
    """The case, with prompts that begin unlike any other round's if it asks for new ones, and cut if not measured."""
    some = slice(case["warm_up"] if number < case["unmeasured"] else None)
    prompts, max_tokens, follows = (case[name][some] for name in ("prompts", "max_tokens", "follows"))
    if case["new_prompts"]:
        prompts = [[number + 1, *prompt[1:]] for prompt in prompts]
    return case | {"prompts": prompts, "max_tokens": max_tokens, "follows": follows}


def _floor(
    bench: Workbench, asked: dict[str, Any], room: Room, case: Case, machine: dict[str, Any]
) -> dict[str, Any] | None:
    contender = asked["contender"]
    policy = policy_of(contender)
    if policy is None or (case["keep_prefixes"] and not case["new_prompts"]):
        return None  # no policy knows what an earlier run left in the cache
    turns = zip(case["prompts"], case["max_tokens"], case["follows"], strict=True)
    jobs = tuple(Job(0.0, len(prompt), most, follows=before) for prompt, most, before in turns)
    rates = machine_of(machine["rates"], bench.model.dtype)
    if asked["quantize"] and not EIGHT_BITS.isdisjoint(Mix.of(asked["quantize"]).schemes):
        rates = replace(
            rates, rate=2 * rates.rate
        )  # an upper bound: attention and unquantized products run at half of it
    work = Workload(case["label"], case["label"], jobs)
    return prediction_json(predict(policy, work, bench.model.config, bench.widths(contender), rates, room.batch))


def _write(file: Path, found: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found))
    os.replace(part, file)


def say(text: str) -> None:
    print(text, flush=True)


# -- interfaces --------------------------------------------------------------------------------------------------------


class Interface(Protocol):
    """A contender, built once for all cases."""

    engine: Engine

    def sample(self, case: Case) -> dict[str, Any]:
        """Run the case. Its seconds count from the call to its return, checking the requests included: as vLLM's do.

        Raises ContenderFailed if not every request got all that it asked for.
        """


class ThroughEngine:
    """Drives steps directly and times every token. The temperature is its only sampling parameter."""

    def __init__(self, name: str, bench: Workbench, room: Room) -> None:
        self._contender = EngineContender(name, bench, room)
        self._contender.build()
        assert self._contender.engine is not None, "it has been built"
        self.engine = self._contender.engine

    def sample(self, case: Case) -> dict[str, Any]:
        turns = zip(case["prompts"], case["max_tokens"], case["follows"], strict=True)
        arrivals = [Arrival(0.0, tuple(prompt), most, before, **case["sampling"]) for prompt, most, before in turns]
        start = time.perf_counter()
        if case["keep_prefixes"]:
            run = drive(self.engine, arrivals, self._contender.bench.device)
        else:
            run = self._contender.run(arrivals)
        seconds = time.perf_counter() - start
        return run.sample() | {"seconds": significant(seconds, 5)}


class ThroughLLM:
    """Calls `LLM.generate`, as programs do: it returns completions, with an object per log-probability."""

    def __init__(self, name: str, bench: Workbench, room: Room) -> None:
        _, off = switched(name)
        self._llm = LLM(
            bench.checkpoint, device=str(bench.device), dtype=str(bench.weights_dtype).removeprefix("torch."),
            context_length=room.context, max_sequences=room.batch, cache_tokens=room.cache_tokens, switch_off=off,
        )  # fmt: skip
        self.engine = self._llm.engine

    def sample(self, case: Case) -> dict[str, Any]:
        if any(before is not None for before in case["follows"]):
            raise ConfigError(f'{case["label"]}: `LLM.generate` takes no conversations: use the interface "engine"')
        params = [SamplingParams(max_tokens=most, ignore_eos=True, **case["sampling"]) for most in case["max_tokens"]]
        before, evicted = self._llm.metrics().steps, self._evictions()
        start = time.perf_counter()
        completions = self._llm.generate(case["prompts"], params)
        seconds = time.perf_counter() - start
        check_completions(completions, params)
        timings = [completion.timings for completion in completions]
        return {
            "seconds": significant(seconds, 5),
            "completed": len(completions),
            "output_tokens": sum(case["max_tokens"]),
            "steps": self._llm.metrics().steps - before,
            "evictions": self._evictions() - evicted,
            "prompt_tokens": sum(len(prompt) for prompt in case["prompts"]),
            "ttft_ms": distribution(1e3 * one.ttft_s for one in timings if one.ttft_s is not None),
            "tpot_ms": distribution(1e3 / one.decode_tokens_per_s for one in timings if one.decode_tokens_per_s),
        }

    def _evictions(self) -> int:
        usage = self._llm.metrics().cache
        return 0 if usage is None else usage.evictions


INTERFACES: dict[str, Callable[[str, Workbench, Room], Interface]] = {"engine": ThroughEngine, "LLM": ThroughLLM}


if __name__ == "__main__":
    run_block(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
