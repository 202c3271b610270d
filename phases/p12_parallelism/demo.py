"""Two ranks side by side, and pipelines with 1, 2 and 4 micro-batches.

    gradus demo p12

The ranks are processes of this machine: they show what is computed where, and nothing of how fast devices would be.
"""

from collections.abc import Iterator, Sequence

from phases.p12_parallelism.schedule import bubble, drawn, timetable
from phases.p12_parallelism.watch import Note, busy, watched

QUESTION = "Two processes share one model. What does each do, and how long does each wait?"
LOOK = (
    "Cut by matrices, both ranks work on every layer, and meet twice in each. Cut by layers, they meet once per step, "
    "and with one micro-batch only one of them has work at a time. In a real pipeline a second micro-batch fills the "
    "gap, as the drawing says. Here a step takes so little that messages take longer than the work."
)
WAYS = (("matrices cut in two", 2, 1, 1), ("layers cut in two, 1 micro-batch", 1, 2, 1),
        ("layers cut in two, 2 micro-batches", 1, 2, 2))  # fmt: skip
MODEL, TOKENS, COLUMNS = "random:tiny-llama", 6, 72


def strip(notes: Sequence[Note], rank: int) -> str:
    """A rank's time as text: # where it computes, . where it waits."""
    start, end = min(note.at for note in notes), max(note.until for note in notes)
    width = (end - start) / COLUMNS
    shares = [0.0] * COLUMNS
    for at, until in busy(notes, rank):
        for column in range(COLUMNS):
            left = start + column * width
            shares[column] += max(min(until, left + width) - max(at, left), 0.0) / width
    return "".join("#" if share > 0.5 else "." for share in shares)


def show(model: str) -> Iterator[str]:
    """Yield the lines of the demo. Raises ConfigError for a model that cannot be cut in two."""
    yield f"{QUESTION}\n"
    for name, parts, stages, micro_batches in WAYS:
        notes = watched(parts, stages, micro_batches, model, TOKENS)
        yield f"{name} (# computes, . waits):"
        for rank in range(parts * stages):
            yield f"  rank {rank}  {strip(notes, rank)}"
    yield "\nThe schedule of 4 stages, if each tick takes as long:"
    for micro_batches in (1, 2, 4):
        table = timetable(4, micro_batches, rounds=3)
        lost = f"stages wait for {bubble(table):.0%} of the time"
        yield f"\nmicro-batches: {micro_batches}, rounds: 3, {lost}\n{drawn(table)}"
    yield f"\n{LOOK}"
