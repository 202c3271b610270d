"""One engine's block of a comparison, in a process of its own: `python -m gradus.bench.block ASKED.json FOUND.json`.

ASKED is what benchmarks/beside_vllm.py writes, for us and for vLLM alike:

    model, device, dtype, contender, context, max_sequences, cache_tokens
    repeats        how often each case is timed, after a whole run that is not
    thorough       whether to say what machine this is, what a case takes at least, and how long the GPU waits
    quick          a rehearsal
    cases          label, prompts (token ids), max_tokens (one per prompt), temperature

FOUND is written after every case, so what was measured before a failure is there: hardware, fingerprint, dtype,
precision, and for each case its samples and prediction, or why there are none.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradus.bench.contenders import EngineContender, Room, Workbench
from gradus.bench.fingerprint import fingerprint, hardware_name, machine_of
from gradus.bench.idle import idle_watch
from gradus.bench.measure import ContenderFailed
from gradus.bench.metrics import prediction_json
from gradus.bench.prediction import predict
from gradus.bench.registry import policy_of
from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import Arrival, Job, Workload


def run_block(asked: dict[str, Any], found_file: Path) -> None:
    """Measure every case. Raises ConfigError for a model or a contender that there is not."""
    bench = Workbench.open(asked["model"], asked["device"], asked["dtype"])
    found: dict[str, Any] = {
        "hardware": hardware_name(bench.device),
        "device": bench.device.type,
        "dtype": bench.dtype,
        "precision": bench.precision.reason,
        "cases": {},
    }
    if asked["thorough"]:
        found["fingerprint"] = fingerprint(bench.device, quick=asked["quick"])
    room = Room(asked["context"], asked["max_sequences"], asked["cache_tokens"])
    contender = EngineContender(asked["contender"], bench, room)
    start = time.perf_counter()
    contender.build()
    say(f"built in {time.perf_counter() - start:.1f} s")
    for case in asked["cases"]:
        kept: dict[str, Any] = {"samples": []}
        found["cases"][case["label"]] = kept
        try:
            _measure(contender, case, asked["repeats"], kept, thorough=asked["thorough"])
        except Exception as error:  # the other cases may still run
            kept["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if asked["thorough"]:
            kept["prediction"] = _floor(bench, contender, case, found["fingerprint"])
        _write(found_file, found)
        say(f"{case['label']}: {kept.get('failed') or [sample['seconds'] for sample in kept['samples']]}")


def _measure(
    contender: EngineContender, case: dict[str, Any], repeats: int, kept: dict[str, Any], *, thorough: bool
) -> None:
    arrivals = [
        Arrival(0.0, tuple(prompt), most, temperature=case["temperature"])
        for prompt, most in zip(case["prompts"], case["max_tokens"], strict=True)
    ]
    contender.run(arrivals)  # every shape is seen, compiled and allocated
    kept["samples"] = [_timed(contender, arrivals) for _ in range(repeats)]
    if thorough and contender.bench.device.type == "cuda":
        kept["samples"][-1]["idle_us"] = _idle(contender, arrivals)


def _timed(contender: EngineContender, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """A sample whose seconds count from the call to its return, checking the requests included: as vLLM's do."""
    start = time.perf_counter()
    run = contender.run(arrivals)
    seconds = time.perf_counter() - start
    return run.sample() | {"seconds": significant(seconds, 5)}


def _idle(contender: EngineContender, arrivals: Sequence[Arrival]) -> dict[str, float]:
    if contender.engine is None:
        raise ContenderFailed("the engine was not built")
    with idle_watch(contender.engine) as watch:
        contender.run(arrivals)
    return distribution(watch.idle_us())


def _floor(
    bench: Workbench, contender: EngineContender, case: dict[str, Any], machine: dict[str, Any]
) -> dict[str, Any] | None:
    policy = policy_of(contender.name)
    if policy is None:
        return None
    jobs = tuple(Job(0.0, len(prompt), most) for prompt, most in zip(case["prompts"], case["max_tokens"], strict=True))
    rates = machine_of(machine["rates"], bench.model.dtype)
    work = Workload(case["label"], case["label"], jobs)
    return prediction_json(predict(policy, work, bench.model.config, bench.widths, rates, contender.room.batch))


def _write(file: Path, found: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found))
    os.replace(part, file)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    run_block(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
