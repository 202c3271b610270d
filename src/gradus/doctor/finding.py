"""The result of a check: its status, what was found, and what to do about it."""

from dataclasses import dataclass

OK, NOTE, WARNING, FAILED = "ok", "note", "warning", "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    status: "ok"; "note" (absent, and fine without); "warning" (something will not work); "failed" (nothing will).
    advice: what to do about it, empty when all is well.
    """

    name: str
    status: str
    detail: str
    advice: str = ""
