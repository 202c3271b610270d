"""Watch ranks at work: what each computes, and where it waits for others.

    python -m phases.p12_parallelism.watch
    python -m phases.p12_parallelism.watch --ranks 1 --stages 2 --micro-batches 2

The clock is the machine's, so times of different processes can be compared.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result
from gradus.engine.request import Request
from gradus.errors import GradusError
from phases.p12_parallelism import rank
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.place import Place

PROMPTS = tuple(tuple(range(start, start + 4)) for start in (1, 9, 17, 25))


@dataclass(frozen=True, slots=True)
class Note:
    """kind: "step" (of a micro-batch), "exchange" (with ranks of the same stage) or "receive" (from another stage).

    at, until: in seconds.
    """

    rank: int
    kind: str
    at: float
    until: float
    micro_batch: int = 0


class WatchedExchange(Exchange):
    """Notes how long each call keeps its caller waiting."""

    def __init__(self, path: str, place: Place) -> None:
        super().__init__(path, place)
        self.notes: list[Note] = []

    def gather(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        gathered = super().gather(x)
        if self.place.parts > 1:
            self.note("exchange", start)
        return gathered

    def receive(self, x: Tensor, rank: int) -> Tensor:
        start = time.perf_counter()
        received = super().receive(x, rank)
        self.note("receive", start)
        return received

    def note(self, kind: str, start: float, micro_batch: int = 0) -> None:
        self.notes.append(Note(self.place.rank, kind, start, time.perf_counter(), micro_batch))


def noted(engines: Sequence[Engine], exchange: WatchedExchange, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Answer the requests twice: the first time to warm up, the second time to be noted."""
    for micro_batch, engine in enumerate(engines):
        watch(engine, exchange, micro_batch)
    rank.answers(list(engines), requests)
    exchange.notes.clear()
    rank.answers(list(engines), requests)
    notes, exchange.notes = exchange.notes, []
    return [asdict(note) for note in notes]


def watch(engine: Engine, exchange: WatchedExchange, micro_batch: int) -> None:
    """Note the steps of an engine."""
    run = engine.runner.run

    def noted_run(plan: Plan) -> Result:
        start = time.perf_counter()
        result = run(plan)
        exchange.note("step", start, micro_batch)
        return result

    engine.runner.run = noted_run  # type: ignore[method-assign]


def watched(parts: int, stages: int, micro_batches: int, model: str, max_tokens: int) -> list[Note]:
    """Watch a job's ranks. Returns their notes in order of time."""
    from phases.p12_parallelism.process import Job, launch

    prompts = PROMPTS[: max(2, micro_batches)]
    found = launch(Job(model, prompts, parts, stages, micro_batches, max_tokens, watched=True))
    return sorted((Note(**note) for each in found for note in each["notes"]), key=lambda note: note.at)


def busy(notes: Sequence[Note], rank: int) -> list[tuple[float, float]]:
    """When a rank computes: its steps, without the waits inside them. notes: in order of time."""
    found: list[tuple[float, float]] = []
    for step in (note for note in notes if note.rank == rank and note.kind == "step"):
        at = step.at
        for wait in notes:
            if wait.rank == rank and wait.kind != "step" and step.at <= wait.at < step.until:
                found.append((at, wait.at))
                at = wait.until
        found.append((at, step.until))
    return found


def waiting(notes: Sequence[Note], rank: int) -> float:
    """The share of the time, from the first note of any rank to the last, in which one does not compute."""
    computing = sum(until - at for at, until in busy(notes, rank))
    return 1 - computing / (max(note.until for note in notes) - min(note.at for note in notes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("--ranks", 2), ("--stages", 1), ("--micro-batches", 1), ("--max-tokens", 4)):
        parser.add_argument(name, type=int, default=usual)
    parser.add_argument("--model", default="random:tiny-llama")
    asked = parser.parse_args()
    try:
        notes = watched(asked.ranks, asked.stages, asked.micro_batches, asked.model, asked.max_tokens)
    except GradusError as error:
        print(f"p12: {error}", file=sys.stderr)
        return 2
    print("      ms   took  rank  what")
    for note in notes:
        what = f"step of micro-batch {note.micro_batch}" if note.kind == "step" else f"  {note.kind}"
        print(f"{1e3 * (note.at - notes[0].at):8.2f} {1e3 * (note.until - note.at):6.2f}  {note.rank:4}  {what}")
    for number in range(asked.ranks * asked.stages):
        print(f"rank {number} has waited for {waiting(notes, number):.0%} of the time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
