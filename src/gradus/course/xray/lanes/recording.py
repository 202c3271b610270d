"""A run of several workers on one axis of time, as plain data: what the page draws. No torch here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradus.course.xray.page import LANES

Frame = dict[str, Any]
"""number, from 1 on; act: the number of its act; at, until: its time there, until the next one begins; ends: when what
it shows ends; events and question, as in other recordings; rows: of the table."""


@dataclass(frozen=True, slots=True)
class Act:
    """A part of the run, which the page shows at once. pieces: lane, kind, at, until, of (the number of a color) and
    text of each; arrows: from, to (lanes) and at."""

    name: str
    length: float
    pieces: Sequence[Mapping[str, Any]]
    arrows: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class LaneRecording:
    """title, about, model, settings, code, panels: as in `gradus.course.xray.recording.Recording`. unit: of the axis.
    lanes: names of the workers. legend: kind, color and text of each entry. head, numbers: titles of the table's
    columns, and which of them hold numbers; table: its own title; grows: each frame's rows are added to those before.
    """

    title: str
    about: str
    model: str
    unit: str
    lanes: Sequence[str]
    legend: Sequence[tuple[str, int, str]]
    acts: Sequence[Act]
    frames: Sequence[Frame]
    table: str
    head: Sequence[str]
    numbers: Sequence[int]
    grows: bool
    code: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    panels: Sequence[str] = ("table",)
    form: str = LANES
    failed: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def frame(
    number: int, act: int, at: float, until: float, events: Iterable[Frame], rows: Sequence[Sequence[str]]
) -> Frame:
    """A frame without a question. Every frame is a step: there is none in which nothing happens."""
    shown = {"number": number, "plan": number, "committed": number, "act": act, "at": at, "until": until, "ends": until}
    return shown | {"events": list(events), "rows": [list(row) for row in rows], "question": None}
