"""An objective: the limits that a service promises its users. Only answers within them count."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradus.errors import RequestError
from gradus.load.answer import Answer

NAMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits in seconds; None does not matter. An answer that failed, or was refused, never meets an objective."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, texts: Sequence[str], option: str = "--goodput") -> "Objective":
        """Read limits in milliseconds, as `ttft:200`. Raises RequestError."""
        limits: dict[str, float] = {}
        for text in texts:
            name, _, limit = text.partition(":")
            try:
                limits[name] = float(limit) / 1000
            except ValueError:
                limits[name] = -1.0
            if name not in NAMES or not 0 < limits[name] < float("inf"):
                raise RequestError.of(option, "limits in ms such as ttft:200, tpot:20 or e2el:5000", text, bare=True)
        return cls(**limits)

    def met(self, answer: Answer) -> bool:
        """Whether every limit is kept. An answer of one token has no TPOT, so it keeps any."""
        if answer.error:
            return False
        found = ((answer.ttft, self.ttft), (answer.tpot or 0.0, self.tpot), (answer.e2el, self.e2el))
        return all(limit is None or value <= limit for value, limit in found)

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in NAMES)

    def __str__(self) -> str:
        limits = {"TTFT": self.ttft, "TPOT": self.tpot, "end to end": self.e2el}
        return ", ".join(f"{name} ≤ {1000 * limit:g} ms" for name, limit in limits.items() if limit is not None)
