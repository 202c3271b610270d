"""Which stage of a pipeline runs which micro-batch at which tick, and how much of the time stages wait.

A tick is the time of one micro-batch in one stage. In a round, every micro-batch passes through all stages once. It
comes back to the first stage with a new token, and not before it has left the last one.
"""

Timetable = list[list[int | None]]
"""One row per stage, with the micro-batch that it runs at each tick, or None where it waits."""


def timetable(stages: int, micro_batches: int, rounds: int = 1) -> Timetable:
    """Begin each micro-batch as soon as the first stage is free, and it has come back from the last one."""
    period = max(stages, micro_batches)  # ticks between a micro-batch's rounds
    ticks = (rounds - 1) * period + micro_batches + stages - 1

    def at(stage: int, tick: int) -> int | None:
        number, micro_batch = divmod(tick - stage, period)  # it is in a stage `stage` ticks after the first
        return micro_batch if 0 <= number < rounds and micro_batch < micro_batches else None

    return [[at(stage, tick) for tick in range(ticks)] for stage in range(stages)]


def bubble(table: Timetable) -> float:
    """The share of all stages' ticks in which they wait."""
    ticks = [micro_batch for row in table for micro_batch in row]
    return ticks.count(None) / len(ticks)


def drawn(table: Timetable) -> str:
    """The table as text: a letter for each micro-batch, a dot for a tick without one."""
    rows = ("".join("." if each is None else chr(ord("a") + each) for each in row) for row in table)
    return "\n".join(f"stage {stage}  {row}" for stage, row in enumerate(rows))
