"""The rules of the speedrun in numbers: docs/speedrun.md has them in sentences. No torch here."""

from dataclasses import dataclass

VERSION = 1
"""Rows of two versions are never compared: raise it with any change to the workload or to what is measured."""
MODEL = "smollm2-135m"
SEED = 2026
REQUESTS = 16
CONTEXT = 512
"""No prompt and answer are longer together, and an engine may rely on it."""
REPETITIONS = 3
"""The fewest; the score is the median."""
MOST_OTHERS = 0.1
"""The largest share of the cores' time that other processes may have in a repetition."""
CLOSE = 0.25
"""A token is exact if its logit is at most this far below the best one: see oracle.py."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of machines. cores: the most that the process may use; None is any number."""

    name: str
    title: str
    device: str
    cores: int | None


CLASSES = {
    one.name: one
    for one in (
        Class("cpu-2", "two cores of a CPU", "cpu", 2),
        Class("gpu-1", "one GPU", "cuda", None),
    )
}
