"""Measure CPU decode on an idle machine and with one core busy, with torch's own way to wait and the command line's.

    PYTHONPATH=src:. python3 benchmarks/busy_core.py --out benchmarks/busy_core.json

Each pair of an engine and a setting runs in a separate process, since OpenMP reads its variables once. The processes
stay alive and take turns, first on the idle machine, then while a program runs that never sleeps; the others sleep on
their pipes. All of them are confined to `--cores` cores, so that a large machine represents a laptop. Rates
are decode tokens per second of one sequence, as `gradus generate` reports them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradus.bench.run.script import ran
from gradus.bench.statistics import median, significant
from gradus.device.threads import BRIEFLY, CHOICES

PROMPT = "Once upon a time, in a small village by the sea,"
TORCH, GRADUS = "torch's own", "the command line's"
FINAL = "final"


@dataclass
class Contender:
    """An engine under one setting. idle, busy: tokens per second in each round."""

    engine: str
    setting: str
    environment: dict[str, str]
    threads: int = 0
    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def summary(self, base: "Contender") -> dict[str, float]:
        """Summarize: medians, the part of the idle rate kept with a busy core, and the idle rate relative to torch's
        own."""
        idle, busy = median(self.idle), median(self.busy)
        return {
            "idle_tok_s": significant(idle, 3),
            "busy_tok_s": significant(busy, 3),
            "kept": significant(busy / idle, 3),
            "idle_of_torchs_own": significant(median([a / b for a, b in zip(self.idle, base.idle, strict=True)]), 3),
        }


class Worker:
    """The process of one contender: it loads the model once, and decodes on request."""

    def __init__(self, contender: Contender, model: str, tokens: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
        command = [sys.executable, __file__, "--worker", contender.engine, "--model", model, "--tokens", str(tokens)]
        self.process = subprocess.Popen(
            command,
            env=environment | contender.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        contender.threads = int(self._answer())

    def decode(self) -> float:
        """Run one completion. Returns its tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write("decode\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.communicate()

    def _answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"busy_core: a worker ended with exit code {self.process.wait()}")
        return float(line)


def work(engine: str, model: str, tokens: int) -> None:
    """Run the worker's side: print the number of torch's threads, then one rate per line of input."""
    import torch

    from gradus import LLM, SamplingParams

    llm = LLM(model, phase=None if engine == FINAL else engine, device="cpu", max_sequences=1, context_length=512)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    print(torch.get_num_threads(), flush=True)
    for _ in sys.stdin:
        (completion,) = llm.generate([PROMPT], params)
        print(completion.timings.decode_tokens_per_s, flush=True)


@contextmanager
def busy_core() -> Iterator[None]:
    """Within the block, run a program that never sleeps, on any core that the scheduler chooses."""
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)  # until it spins
        yield
    finally:
        spinner.kill()
        spinner.wait()


def measure(contenders: list[Contender], model: str, tokens: int, rounds: int) -> None:
    """Measure the contenders' rates, each in turn in every round."""
    workers = [Worker(contender, model, tokens) for contender in contenders]
    for worker in workers:
        worker.decode()  # warms up
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for contender, worker in zip(contenders, workers, strict=True):
            contender.idle.append(significant(worker.decode()))
        with busy_core():
            for contender, worker in zip(contenders, workers, strict=True):
                contender.busy.append(significant(worker.decode()))
    for worker in workers:
        worker.close()


def results(contenders: list[Contender], about: Mapping[str, Any]) -> dict[str, Any]:
    """Format the results: the machine, then each contender with its summary and raw rates."""
    bases = {contender.engine: contender for contender in contenders if contender.setting == TORCH}
    rows = [{**asdict(contender), "summary": contender.summary(bases[contender.engine])} for contender in contenders]
    return {**about, "contenders": rows}


def confine(cores: int) -> int:
    """Confine this process and its children to the first `cores` cores it may use. Returns their number. Ends the
    program if the system, such as macOS, cannot do this."""
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("busy_core: this system cannot keep a process to some of its cores: measure on Linux")
    mine = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, mine)
    return len(mine)


def parse(words: list[str] | None) -> list[tuple[str, dict[str, str]]]:
    """Parse further settings to try: "GOMP_SPINCOUNT=1000" is its own name."""
    return [(word, dict([word.split("=", 1)])) for word in words or ()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:smollm2-135m")
    parser.add_argument("--engine", action="append", help="a phase or final; may be repeated. p01 and final by default")
    parser.add_argument("--try", action="append", dest="also", metavar="NAME=VALUE", help="one more setting")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", metavar="ENGINE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.model, options.tokens)
        return
    from gradus import doctor
    from gradus.bench.measure.fingerprint import commit, versions

    cores = confine(options.cores)
    settings = [(TORCH, {}), (GRADUS, BRIEFLY), *parse(options.also)]
    engines = options.engine or ["p01", FINAL]
    contenders = [Contender(engine, name, dict(setting)) for engine in engines for name, setting in settings]
    measure(contenders, options.model, options.tokens, options.rounds)
    machine = doctor.hardware()
    about = {"processor": machine["processor"], "cores": cores, "versions": versions(), "model": options.model}
    about |= {"tokens": options.tokens, "commit": options.commit or commit()}
    found = results(contenders, about)
    for row in found["contenders"]:
        print(f"{row['engine']:<6} {row['setting']:<24} {row['threads']} threads  {row['summary']}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
