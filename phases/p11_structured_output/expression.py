"""A regular expression as a tree: characters, in order, either, repeated. `parsing.py` reads one from text."""

from dataclasses import dataclass

from phases.p11_structured_output.characters import Ranges, single


@dataclass(frozen=True, slots=True)
class Characters:
    """A character in one of the ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class InOrder:
    """All parts, one after the other."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of the parts."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part, `least` to `most` times. most: None is without end."""

    part: "Expression"
    least: int
    most: int | None


Expression = Characters | InOrder | Either | Repeat


def literal(text: str) -> Expression:
    return InOrder(tuple(Characters(single(character)) for character in text))
