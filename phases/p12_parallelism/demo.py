"""Two ranks next to each other, on a clock that counts the weights that they read; and the schedule of a pipeline.

    gradus demo p12

The ranks really compute and exchange. Their time is counted and not measured, so the picture is the same on any
machine: see replay.py.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phases.p12_parallelism.counted import COMPUTES, acts
from phases.p12_parallelism.replay import EXCHANGES, Piece, length, replay
from phases.p12_parallelism.schedule import bubble, drawn, timetable

QUESTION = "Two ranks share one model. What does each do, and how long does each wait?"
LOOK = (
    "Cut by matrices, both ranks read half of every layer, and meet twice in each: the toll decides what that gains. "
    "Cut by layers, they meet once per step, and with one micro-batch one of them always waits. A second one, of two "
    "more requests, fills the gap. One process could read its weights once for all four requests, if it had room for "
    "them: a pipeline is for what does not fit."
)
WAYS = (("matrices cut in two", 2, 1, 1), ("layers cut in two, 1 micro-batch", 1, 2, 1),
        ("layers cut in two, 2 micro-batches", 1, 2, 2))  # fmt: skip
MODEL, TOKENS, REQUESTS = "random:tiny-llama", 2, 2  # requests in each micro-batch
SHARES = {"NCCL": 0.34, "one launch": 0.105}
"""The share of a step that the sums of Llama-3.1-8B take on two H200, by the toll: see roofline.py."""
FINE, COARSE = 72, 32  # columns that one process takes for a step


class Run(NamedTuple):
    """One way to cut the model, counted. `way` of exchanging has the toll; `parts` ranks share a stage."""

    name: str
    way: str
    toll: int
    parts: int
    micro_batches: int
    pieces: list[Piece]


def toll_of(alone: int, exchanges: int, share: float) -> int:
    """The weights that one exchange costs if all of a step's exchanges are to take this share of it on two ranks."""
    return round(share / (1 - share) * alone / 2 / exchanges)


def strip(pieces: Sequence[Piece], rank: int, unit: float) -> str:
    """A rank's time as text, a column per `unit` weights: # or a micro-batch's letter where it computes, = where it
    exchanges, . where it waits."""
    letters = "ab" if any(piece.act.micro_batch for piece in pieces) else "#"
    columns = [dict.fromkeys(f".={letters}", 0.0) for _ in range(-int(-length(pieces) // unit))]
    for piece in pieces:
        if piece.rank == rank:
            mark = letters[piece.act.micro_batch] if piece.kind == COMPUTES else "=" if piece.kind == EXCHANGES else "."
            for number, column in enumerate(columns):
                column[mark] += max(min(piece.until, (number + 1) * unit) - max(piece.at, number * unit), 0)
    marks = [max(column, key=lambda mark: column[mark]) for column in columns]
    for piece in pieces:
        if piece.rank == rank and piece.kind == EXCHANGES:
            marks[int(piece.at // unit)] = "="  # however short it is
    return "".join(marks)


def runs(model: str) -> tuple[int, list[Run]]:
    """Count what one process reads for a token, and run all ways: matrices cut, by each toll, then layers by the last.

    Raises ConfigError for a model that cannot be cut in two.
    """
    (matrices, parts, stages, micro_batches), *layers = WAYS
    found = acts(model, parts, stages, micro_batches, 1, tokens=1)
    alone = length(replay(acts(model, 1, 1, 1, 1, tokens=1), 1, 0))
    exchanges = sum(act.kind != COMPUTES for act in found[0])
    tolls = {way: toll_of(alone, exchanges, share) for way, share in SHARES.items()}
    done = [Run(matrices, way, toll, parts, 1, replay(found, parts, toll)) for way, toll in tolls.items()]
    way, toll = list(tolls.items())[-1]
    for name, parts, stages, micro_batches in layers:
        found = acts(model, parts, stages, micro_batches, REQUESTS * micro_batches, TOKENS)
        done.append(Run(name, way, toll, parts, micro_batches, replay(found, parts, toll)))
    return alone, done


def show(model: str) -> Iterator[str]:
    """Yield the lines of the demo. Raises ConfigError for a model that cannot be cut in two."""
    alone, done = runs(model)
    yield f"{QUESTION}\n"
    yield f"A step reads {alone:,} weights. Its time is the number of weights that are read one after another.\n"
    yield f"one process: {alone:,}\n          {'#' * FINE}"
    for run in done:
        took = length(run.pieces)
        if run.parts > 1:
            exchanges = sum(piece.kind == EXCHANGES and piece.rank == 0 for piece in run.pieces)
            said = f"{exchanges} exchanges, each as long as {run.toll:,} weights ({run.way})"
            yield f"{run.name}, {said}: {took:,}, {alone / took:.2f} ×"
        else:
            requests = REQUESTS * run.micro_batches
            yield f"{run.name}, {requests} requests: {took:,} for {requests * TOKENS} tokens"
        yield from strips(run.pieces, alone / (FINE if run.parts > 1 else COARSE))
    yield "\nThe schedule of 4 stages, if each tick takes as long:"
    for micro_batches in (1, 2, 4):
        table = timetable(4, micro_batches, rounds=3)
        lost = f"stages wait for {bubble(table):.0%} of the time"
        yield f"\nmicro-batches: {micro_batches}, rounds: 3, {lost}\n{drawn(table)}"
    yield f"\n{LOOK}"


def strips(pieces: Sequence[Piece], unit: float) -> Iterator[str]:
    for rank in range(2):
        yield f"  rank {rank}  {strip(pieces, rank, unit)}"
