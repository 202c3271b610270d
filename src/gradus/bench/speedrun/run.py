"""A whole measurement: load, then repeat (forget, warm up, time), then judge every token."""

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from random import SystemRandom
from time import perf_counter
from typing import Any

from gradus.bench.measure import gpu
from gradus.bench.measure.fingerprint import commit, versions
from gradus.bench.speedrun import oracle, workload
from gradus.bench.speedrun.contestants import Answers, Contestant
from gradus.bench.speedrun.log import Log, hash_of, score_of, unfit
from gradus.bench.speedrun.neighbors import Moment, share
from gradus.bench.speedrun.oracle import Verdict
from gradus.bench.speedrun.rules import CLASSES, REPETITIONS, SEED, VERSION
from gradus.bench.speedrun.workload import Ask
from gradus.bench.statistics import significant
from gradus.device.threads import usable_cores
from gradus.doctor import machine
from gradus.errors import ConfigError
from gradus.loading import Checkpoint

MOST_SEED = 10**6


@dataclass(frozen=True)
class Timed:
    """A repetition. seconds: from the first request's submission to the last token. others: as in neighbors.py."""

    seconds: float
    others: float
    answers: Answers

    @property
    def record(self) -> dict[str, Any]:
        return {
            "seconds": significant(self.seconds, 5),
            "others": round(self.others, 3),
            "hashes": [hash_of(answer) for answer in self.answers],
        }


@dataclass(frozen=True)
class Measured:
    """A measurement. seed: of the warm-up, new every time."""

    loading_s: float
    seed: int
    warm_up: Answers
    runs: list[Timed]


def measure(checkpoint: Checkpoint, contestant: Contestant, repetitions: int = REPETITIONS) -> Measured:
    """Time the contestant. Raises ContenderFailed if it fails, ConfigError if the checkpoint has no tokenizer."""
    encode, seed = encoding(checkpoint), SystemRandom().randrange(MOST_SEED)
    asks, first = workload.asks(encode, SEED), workload.warm_up(encode, seed)
    runs: list[Timed] = []
    warm_up: Answers = []
    start = perf_counter()
    try:
        contestant.load()
        loading_s = perf_counter() - start
        for _ in range(repetitions):
            contestant.forget()
            warm_up = contestant.run(first)
            runs.append(timed(contestant, asks))
    finally:
        contestant.close()
    return Measured(loading_s, seed, warm_up, runs)


def timed(contestant: Contestant, asks: Sequence[Ask]) -> Timed:
    before, start = Moment.now(), perf_counter()
    answers = contestant.run(asks)
    seconds = perf_counter() - start
    return Timed(seconds, share(before, Moment.now(), seconds, usable_cores()), answers)


def encoding(checkpoint: Checkpoint) -> workload.Encode:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise ConfigError(f"{checkpoint.name} has no tokenizer, and the prompts of a speedrun are texts")
    return lambda text: tokenizer.encode(text, special_tokens=False)


def judged(checkpoint: Checkpoint, seed: int, warm_up: Answers, runs: Sequence[Answers]) -> Verdict:
    """Judge the answers of a log: those of the warm-up, then of each repetition, equal ones once.

    seed: of the warm-up.
    """
    encode = encoding(checkpoint)
    answered = list(named("request {} of the warm-up", workload.warm_up(encode, seed), warm_up))
    asks = workload.asks(encode, SEED)
    for answers in runs:
        answered += named("request {}", asks, answers)
    return oracle.judge(oracle.load(checkpoint), dict.fromkeys(answered))


def named(name: str, asks: Sequence[Ask], answers: Answers) -> Iterator[tuple[str, Ask, tuple[int, ...]]]:
    for number, (ask, answer) in enumerate(zip(asks, answers, strict=True), start=1):
        yield name.format(number), ask, tuple(answer)


# -- the log -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Before:
    """The class, the machine, and its load averages before a run. Raises ConfigError for an unfit machine."""

    category: str
    machine: dict[str, Any]
    load: list[float]

    @classmethod
    def now(cls, category: str) -> "Before":
        found = machine_of(CLASSES[category].device)
        if reason := unfit(category, found):
            raise ConfigError(reason)
        load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []
        return cls(category, found, load)


def machine_of(device: str) -> dict[str, Any]:
    """The machine as a log names it. device: "cpu" or "cuda"."""
    known = machine.hardware()
    found: dict[str, Any] = {name: known[name] for name in ("system", "processor", "cores", "instruction sets")}
    found |= {"memory": known["memory"].split(",")[0], "device": device, "gpus": 0}
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("class gpu-1 needs a CUDA GPU, and torch finds none: gradus doctor says why")
        found |= {"gpus": torch.cuda.device_count(), **gpu.describe()}
    return found


def model_hash(checkpoint: Checkpoint) -> str:
    """The SHA-256 of the model's file; the name of one that has no file of its own, such as random weights."""
    source = checkpoint.source
    if source is None or not source.is_file():
        return checkpoint.name
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def log_of(
    checkpoint: Checkpoint,
    before: Before,
    contestant: Contestant,
    measured: Measured,
    verdict: Verdict,
    words: Sequence[str],
) -> Log:
    """Write down what was measured and judged. words: of the command, after `gradus`."""
    answers = {hash_of(answer): answer for answer in measured.warm_up}
    answers |= {hash_of(answer): answer for one in measured.runs for answer in one.answers}
    runs = [one.record for one in measured.runs]
    stamp = commit()
    return Log(
        rules=VERSION,
        workload=workload.digest(workload.asks(encoding(checkpoint), SEED)),
        model=model_hash(checkpoint),
        category=before.category,
        engine={"name": contestant.name, "kind": contestant.kind, **plain(contestant.facts)},
        command=shlex.join(["gradus", *words]),
        commit=stamp.removesuffix("+"),
        changed=stamp.endswith("+"),
        date=datetime.now(UTC).date().isoformat(),
        machine=before.machine,
        versions=versions(),
        load=before.load,
        loading_s=significant(measured.loading_s),
        warm_up={"seed": measured.seed, "hashes": [hash_of(answer) for answer in measured.warm_up]},
        runs=runs,
        answers=answers,
        verdict=asdict(verdict),
        score=score_of(runs, sum(len(answer) for answer in measured.runs[0].answers)),
    )


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as JSON has them. Files become their names and hashes."""
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in facts.get("files", ())}
    rest = {name: value for name, value in facts.items() if name != "files"}
    return rest | ({"files": files} if files else {})
