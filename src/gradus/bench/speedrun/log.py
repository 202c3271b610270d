"""The log of a run, and what can be checked in it without a model. No torch here.

The seal is a hash of everything else in the file. It is no signature: an edited log can be sealed again. It finds
slips; `verify` recomputes the rest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Self

from gradus.bench.record.results import laid_out
from gradus.bench.speedrun.rules import CLASSES, MOST_OTHERS, REPETITIONS, VERSION, Class
from gradus.bench.statistics import significant
from gradus.errors import ConfigError


@dataclass(frozen=True)
class Log:
    """A run on one machine.

    rules: their version. workload: the requests' digest. model: the SHA-256 of its file. category: the class.
    engine: name, kind ("phase", "yours", "final", "peer", "program"), settings, and the files with their hashes that
    are not in the repository.
    commit: of the repository; changed: whether files of src/ or phases/ differed from it.
    load: the machine's load averages before, over 1, 5 and 15 minutes; [] where the system has none.
    warm_up: its seed, and the hashes of its answers. runs: of each repetition the seconds, the share of the cores' time
    that other processes had, and a hash per request.
    answers: the tokens by their hash. verdict: as in oracle.py. score: as `score_of` computes it.
    """

    rules: int
    workload: str
    model: str
    category: str
    engine: dict[str, Any]
    command: str
    commit: str
    changed: bool
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    load: list[float]
    loading_s: float
    warm_up: dict[str, Any]
    runs: list[dict[str, Any]]
    answers: dict[str, list[int]]
    verdict: dict[str, Any]
    score: dict[str, float]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a log. Raises ConfigError for anything else, and for a log whose seal does not match."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            seal = found.pop("seal")
            log = cls(**found)
            list(log.faults())  # reads every part
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}: no log of a speedrun: {type(error).__name__} {error}") from error
        if seal != sealed(found):
            raise ConfigError(f"{file}: edited since it was written: its seal does not match its content")
        return log

    def write(self, file: Path) -> None:
        content = asdict(self)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(laid_out(content | {"seal": sealed(content)}, "") + "\n", encoding="utf-8")

    def faults(self) -> Iterator[str]:
        """Why this log is no row of the table, a sentence each: all that can be known without the model."""
        if self.rules != VERSION:
            yield f"it follows version {self.rules} of the rules, and these are version {VERSION}: run it again"
        if self.changed or self.commit == "unknown":
            yield f"the files that ran are not those of commit {self.commit}: commit them, and run it again"
        if reason := unfit(self.category, self.machine):
            yield reason
        if len(self.runs) < REPETITIONS:
            yield f"it has {len(self.runs)} repetitions, and {REPETITIONS} are the fewest"
        yield from self._wrong_hashes()
        if any(run["seconds"] <= 0 for run in self.runs):
            yield "its runs have no time"
        if (busy := self.others) > MOST_OTHERS:
            yield f"other processes had {busy:.0%} of the cores' time, and {MOST_OTHERS:.0%} is the most: end them"
        if self.score != score_of(self.runs, self._tokens()):
            yield f"its score is {self.score}, and its runs make {score_of(self.runs, self._tokens())}"
        if wrong := {name: self.verdict[name] for name in ("tokens", "likeliest", "widest", "wrong")}["wrong"]:
            yield f"a token is wrong: {wrong}"

    def _wrong_hashes(self) -> Iterator[str]:
        for name, tokens in self.answers.items():
            if hash_of(tokens) != name:
                yield f"the tokens under {name} have the hash {hash_of(tokens)}"
        for number, hashes in enumerate((self.warm_up["hashes"], *(run["hashes"] for run in self.runs))):
            if lost := [name for name in hashes if name not in self.answers]:
                where = f"repetition {number}" if number else "the warm-up"
                yield f"{where} names an answer {lost[0]} that is not in the log"

    @property
    def others(self) -> float:
        """The share of the cores' time that other processes had, in the repetition where it was largest."""
        return max((float(run["others"]) for run in self.runs), default=0.0)

    def _tokens(self) -> int:
        return sum(len(self.answers.get(name, ())) for name in self.runs[0]["hashes"]) if self.runs else 0

    def answered(self, hashes: Sequence[str]) -> list[list[int]]:
        return [self.answers[name] for name in hashes]


NAMES = tuple(one.name for one in fields(Log))


def sealed(content: Mapping[str, Any]) -> str:
    plain = json.dumps({name: content[name] for name in NAMES}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def hash_of(tokens: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:16]


def score_of(runs: Sequence[Mapping[str, Any]], tokens: int) -> dict[str, float]:
    """The median of the seconds, which is what counts; their spread; and the rate that the median makes."""
    seconds = [run["seconds"] for run in runs]
    if not seconds or min(seconds) <= 0:
        return {}
    middle = significant(median(seconds), 5)
    return {
        "seconds": middle,
        "fastest": min(seconds),
        "slowest": max(seconds),
        "tokens_per_s": significant(tokens / middle, 4),
    }


def unfit(category: str, machine: Mapping[str, Any]) -> str:
    """Why a machine is not of a class, in a sentence; "" if it is. machine: as in a log, with its device."""
    found: Class | None = CLASSES.get(category)
    if found is None:
        return f"there is no class {category!r}, only {', '.join(CLASSES)}"
    if machine["device"] != found.device:
        return f"class {category} runs on {found.device}, and this ran on {machine['device']}"
    if found.cores is not None and int(machine["cores"]) > found.cores:
        return (
            f"class {category} has {found.cores} cores, and the process may use {machine['cores']}: "
            f"begin the command with `taskset --cpu-list 0-{found.cores - 1}`"
        )
    if found.device == "cuda" and machine["gpus"] != 1:
        return f"class {category} has one GPU, and the process sees {machine['gpus']}: set CUDA_VISIBLE_DEVICES=0"
    return ""
