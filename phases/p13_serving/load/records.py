"""One request, as a client has noted it. Times are in seconds, by one clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """at: when the request was due. first, last: when its first and last tokens came; None if they have not.

    tokens: of the answer so far. failed: it was refused, cut off, or ended by an error, whatever came before.
    """

    at: float
    first: float | None
    last: float | None
    tokens: int
    failed: bool = False

    @property
    def ttft(self) -> float | None:
        """Time to first token, from the moment when the request was due."""
        return None if self.first is None else self.first - self.at
