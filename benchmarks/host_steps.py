"""What does a steady step of decodes cost the host, and how much code does it pass?

    PYTHONPATH=src:. python3 benchmarks/host_steps.py --out "$OUT"/host_steps.json

Sequences of different lengths decode, greedily and at a temperature, in an engine with room for 256. A row has the
microseconds of `Engine.step` without the waiting for the device, and of `LLM.step`, which also makes text, as means of
STEPS steps in each of ROUNDS; pages that sequences enter are part of it. It also counts the calls of one step, and the
functions and files of this project among them. Hosts differ by two from minute to minute: `loop_ms` is what 200,000
turns of an empty Python loop took right before.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import gradus
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.device.transfer import Arrival
from gradus.engine.request import SamplingParams
from gradus.text.llm import LLM

SLOTS, ROWS, STEPS, ROUNDS, PROMPT, SPREAD = 256, (1, 8, 64, 256), 64, 8, 40, 16
TURNS = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--speculate", help="as of the engine: ngram, heads:DIR")
    parser.add_argument("--rows", type=int, nargs="+", default=[*ROWS])
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    slots = max(*asked.rows, SLOTS) if asked.device != "cpu" else max(asked.rows)
    llm = LLM(
        asked.model, device=asked.device, max_sequences=slots, speculate=asked.speculate, switch_off=("prefix_cache",)
    )
    made = {"commit": asked.commit or commit(), "model": asked.model, "speculate": asked.speculate}
    rows = []
    for count in asked.rows:
        rows.append(measured(llm, count))
        print(json.dumps(rows[-1]), flush=True)
    made |= {**fingerprint(llm.device, quick=True), "steps": STEPS, "rows": rows}
    if asked.out is not None:
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return 0


def measured(llm: LLM, count: int) -> dict[str, Any]:
    """A row: `count` sequences decode until all has been measured."""
    engine, prompts = llm.engine, [PROMPT + number % SPREAD for number in range(count)]
    steps = 2 * STEPS * (ROUNDS + 2)
    for number, length in enumerate(prompts):
        params = SamplingParams(max_tokens=steps, temperature=0.7 * (number % 2), seed=number, ignore_eos=True)
        llm.submit([(7 * number + 3 * place) % 1000 + 5 for place in range(length)], params)
    for _ in range(STEPS):  # prompts are read, and the first steps of every kind are over
        llm.step()
    row: dict[str, Any] = {"rows": count, "loop_ms": loop_ms()}
    with Waiting() as waiting:
        row["engine_us"] = [waiting.without(engine.step) for _ in range(ROUNDS)]
        row["llm_us"] = [waiting.without(llm.step) for _ in range(ROUNDS)]
    row |= fewest(engine.step)
    for request in list(llm.front_end.open_requests):
        llm.cancel(request)
    while llm.has_work:
        llm.step()
    return row


def loop_ms() -> float:
    start = time.perf_counter()
    for _ in range(TURNS):
        pass
    return round(1e3 * (time.perf_counter() - start), 2)


class Waiting:
    """Within, counts the seconds for which the host waits for the device."""

    def __enter__(self) -> "Waiting":
        self.seconds, self._wait = 0.0, Arrival.wait
        wait = self._wait

        def timed(arrival: Arrival) -> None:
            start = time.perf_counter()
            wait(arrival)
            self.seconds += time.perf_counter() - start

        Arrival.wait = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Arrival.wait = self._wait  # type: ignore[method-assign]

    def without(self, step: Callable[[], object]) -> float:
        """Microseconds of a step without waiting, as the mean of STEPS."""
        start, waited = time.perf_counter(), self.seconds
        for _ in range(STEPS):
            step()
        return round(1e6 * (time.perf_counter() - start - (self.seconds - waited)) / STEPS, 1)


def fewest(step: Callable[[], object]) -> dict[str, int]:
    """Count what a step passes, where no page is entered: Python calls, and this project's functions and files."""
    passed = min((calls(step) for _ in range(STEPS)), key=Counter.total)
    mine = [place for place in passed if place[0].startswith(str(Path(gradus.__file__).parent))]
    return {"calls": passed.total(), "functions": len(mine), "files": len({file for file, _ in mine})}


def calls(step: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Count a step's Python calls, by file and function."""
    passed: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            passed[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    step()
    sys.setprofile(None)
    return passed


if __name__ == "__main__":
    sys.exit(ran(main))
