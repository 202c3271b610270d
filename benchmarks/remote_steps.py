"""Measure the cost of a runner in another process per step, without a model: packing, sending, checks, unpacking.

    python benchmarks/remote_steps.py [--steps 3000] [--out benchmarks/remote_steps.json]

A step has B decodes, and one in 16 enters a page. The runner draws token 0 for each. The rows have the time until the
result is there, and the processor time that each side spends on it; the same runner in this process is the baseline.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gradus.bench.run.script import ran
from gradus.cache import TableChange
from gradus.device.processor import processor_name
from gradus.engine.engine import Runner
from gradus.engine.plan import Admission, Decodes, Plan, Sampled, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.execution.remote.messages import PLANS, PROTOCOL, Hello
from gradus.execution.remote.runner import RemoteRunner, greet
from gradus.execution.remote.service import Service
from gradus.execution.remote.stream import Listener, connect

BATCHES = (1, 64, 256)
PAGE, WARM = 16, 300
HELLO = Hello(
    protocol=PROTOCOL, plans=PLANS, vocab_size=32_000, context_length=1 << 20, max_sequences=256, page_size=PAGE,
    pages=1 << 20,
)  # fmt: skip


class Nothing:
    """Draws token 0 for every row. seconds: of the process so far, not of the step."""

    def run(self, plan: Plan) -> "Drawn":
        return Drawn(plan)


class Drawn:
    def __init__(self, plan: Plan) -> None:
        self._plan, self.rows = plan, plan.tokens

    def get(self) -> Sampled:
        counts = [span.logits for span in self._plan.spans]
        tokens = np.zeros(len(self._plan.decodes) + sum(counts), np.int64)
        return Sampled(tokens, counts, seconds=time.process_time())


def first(batch: int) -> Plan:
    """Admit sequences of one token, as a decode's limits allow."""
    plan = Plan()
    for slot in range(batch):
        request = Request.create(str(slot), [1], SamplingParams(max_tokens=9), ModelLimits(32_000, 1 << 20))
        plan.admissions.append(Admission(slot, request, 0, (1,)))
        plan.spans.append(Span(None, slot, 0, (1,), 1, TableChange(0, ((1 + slot,),))))
    return plan


def decodes(batch: int, steps: int) -> Iterator[Plan]:
    """Plan steps of decodes whose sequences enter a page every PAGE steps, in turn."""
    slots, limits = np.arange(batch), np.full(batch, HELLO.context_length - 1)
    for step in range(1, steps + 1):
        entering = [slot for slot in range(batch) if (step + slot) % PAGE == 0]
        pages = [(slot, TableChange((step + slot % PAGE) // PAGE, ((1 + step,),))) for slot in entering]
        yield Plan(decodes=Decodes(slots, np.full(batch, step), limits, pages))


def measured(runner: Runner, batch: int, steps: int) -> dict[str, float]:
    """Run steps one after the other. Returns microseconds per step."""
    runner.run(first(batch)).get()
    took, spent, seconds = list[float](), list[float](), list[float]()
    for plan in decodes(batch, WARM + steps):
        began, used = time.perf_counter(), time.thread_time()
        sampled = runner.run(plan).get()
        took.append(time.perf_counter() - began)
        spent.append(time.thread_time() - used)
        seconds.append(sampled.seconds)
    return {
        "step_us": round(1e6 * median(took[WARM:]), 1),
        "p99_us": round(1e6 * float(np.quantile(took[WARM:], 0.99)), 1),
        "engine_us": round(1e6 * sum(spent[WARM:]) / steps, 1),
        "runner_us": round(1e6 * (seconds[-1] - seconds[WARM - 1]) / steps, 1),
    }


def rows(steps: int) -> Iterator[dict[str, Any]]:
    for batch in BATCHES:
        here = measured(Nothing(), batch, steps)
        del here["runner_us"]  # the process's, which is the engine's, too
        yield {"batch": batch, "runner": "in this process"} | here
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            with subprocess.Popen([sys.executable, __file__, "--serve", path]) as process:
                stream = connected(path)
                runner = RemoteRunner(stream, greet(stream, "a benchmark"))
                yield {"batch": batch, "runner": "in another process"} | measured(runner, batch, steps)
                stream.close()
                process.kill()


def table(found: dict[str, Any]) -> str:
    """Write the rows of docs/design/remote.md."""
    lines = ["| decodes | here | there: median | p99 | the engine's part | the runner's |", "|---|---|---|---|---|---|"]
    for here, there in zip(found["rows"][::2], found["rows"][1::2], strict=True):
        cells = [here["step_us"], *(there[name] for name in ("step_us", "p99_us", "engine_us", "runner_us"))]
        lines.append(f"| {here['batch']} | " + " | ".join(f"{cell:.0f} µs" for cell in cells) + " |")
    return "\n".join(lines)


def connected(path: str) -> Any:
    while not Path(path).exists():
        time.sleep(0.05)
    return connect(f"unix:{path}", 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve")
    given = parser.parse_args()
    if given.serve:
        Service(Nothing(), HELLO).serve(Listener(given.serve))
    found = {"machine": processor_name(), "python": platform.python_version(), "steps": given.steps}
    found["rows"] = list(rows(given.steps))
    text = json.dumps(found, indent=1) + "\n"
    print(table(found))
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
