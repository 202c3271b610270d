"""One request of a load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A request. at: seconds after the start when it is due. prompt: token ids, or a text. output: its answer's tokens.

    late: it is due once every other job has its first token, whenever that is.
    """

    at: float
    prompt: tuple[int, ...] | str
    output: int
    late: bool = False
