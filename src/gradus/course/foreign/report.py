"""A program's report of a step, read with care: a field that is missing or of another type is one clear line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

SHOWN = 120  # characters of an answer that a message quotes

Value = TypeVar("Value")


class Garbage(Exception):
    """An answer that is not what the protocol asks for."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request that a step computed: `count` of them from position `start`, the last of them `drafts`.

    tokens: what the step produced; () for a chunk that does not reach the newest token.
    """

    id: str
    start: int
    count: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.count

    def __str__(self) -> str:
        return f"{self.id}: {self.count} from {self.start}"


@dataclass(frozen=True, slots=True)
class Report:
    """One step. tables: the pages of each running request, while the step ran; free, idle: the pages that no request
    held meanwhile, without and with content that others may still find. number: counts steps from 1."""

    number: int
    spans: tuple[Span, ...]
    ended: tuple[str, ...]
    tables: dict[str, tuple[int, ...]]
    free: int
    idle: int

    def of(self, id: str) -> Span | None:
        return next((span for span in self.spans if span.id == id), None)

    @property
    def names(self) -> list[str]:
        return [span.id for span in self.spans]

    @property
    def computed(self) -> str:
        """The spans, for a message."""
        return ", ".join(map(str, self.spans)) or "nothing"


def read(answer: dict[str, Any], number: int) -> Report:
    """Read the answer to a step. Raises Garbage."""
    if "error" in answer:
        raise Garbage(f"step {number} was refused: {shown(answer['error'])}")
    tables = field(answer, "tables", is_tables, "an object of lists of page numbers", number, {})
    return Report(
        number,
        tuple(read_span(each, number) for each in field(answer, "spans", is_objects, "a list of objects", number)),
        tuple(field(answer, "ended", is_names, "a list of ids", number)),
        {id: tuple(pages) for id, pages in tables.items()},
        field(answer, "free", is_count, "a whole number", number, 0),
        field(answer, "idle", is_count, "a whole number", number, 0),
    )


def read_span(span: dict[str, Any], number: int) -> Span:
    return Span(
        field(span, "id", lambda value: isinstance(value, str), "an id", number),
        field(span, "start", is_count, "a whole number", number),
        field(span, "count", lambda value: is_count(value) and value > 0, "1 or more", number),
        tuple(field(span, "tokens", is_counts, "a list of token ids", number)),
        tuple(field(span, "drafts", is_counts, "a list of token ids", number, [])),
    )


def field(
    owner: dict[str, Any], name: str, fits: Callable[[Any], bool], meant: str, number: int, otherwise: Any = None
) -> Any:
    """One field. otherwise: its value where it is missing; None: it may not be."""
    value = owner.get(name, otherwise)
    if value is None:
        raise Garbage(f"step {number}: {shown(owner)} has no {name!r}")
    if not fits(value):
        raise Garbage(f"step {number}: {name!r} must be {meant}, got {shown(value)}")
    return value


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def is_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_counts, value.values()))


def shown(value: Any) -> str:
    """Shorten a value to fit a sentence."""
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 2]} …"
