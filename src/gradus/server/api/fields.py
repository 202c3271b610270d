"""A body's fields, read one by one. Fields that no reader asks for are ignored and named, or refused.

Clients send every field they know, many of them null. A server that refuses unknown fields fails half of the clients,
and one that ignores fields that change the answer lies to the rest. So there are three kinds of fields: those that are
read; unsupported ones that would change the answer, refused by name (`refuse`); and all others, which are ignored and
named in a header of the answer (`strict` refuses them).
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from gradus.config.description import did_you_mean
from gradus.errors import RequestError

MOST_NAMED = 16  # ignored fields that the header names


class Fields:
    """The fields of a JSON object; null is absent.

    body: parsed JSON; anything but an object raises RequestError. strict: refuse fields that are not read.
    """

    def __init__(self, body: Any, *, strict: bool = False) -> None:
        if not isinstance(body, dict):
            refuse("body", "a JSON object", body)
        self._given = {name: value for name, value in body.items() if value is not None}
        self._read: set[str] = set()
        self._strict = strict

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str, default: Any = None) -> Any:
        """Read a field of any type."""
        self._read.add(name)
        return self._given.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        return value if isinstance(value, bool) else refuse(name, "true or false", value)

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self.get(name, default)
        return value if value is None or isinstance(value, str) else refuse(name, "a text", value)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        value = self.get(name, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            return value
        refuse(name, f"a whole number between {least} and {most}", value)

    def object(self, name: str) -> Mapping[str, Any]:
        """Read an object without its nulls; {} if it is absent."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            refuse(name, "an object", value)
        return {key: item for key, item in value.items() if item is not None}

    def list(self, name: str) -> list[Any]:
        value = self.get(name, [])
        return value if isinstance(value, list) else refuse(name, "a list", value)

    def some(self, *names: str) -> dict[str, Any]:
        """Read the given ones among these fields."""
        self._read.update(names)
        return {name: self._given[name] for name in names if name in self._given}

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Refuse unsupported fields that would change the answer. reasons: by name, what to do instead."""
        for name, reason in reasons.items():
            if name in self._given:
                raise RequestError(f"{name} is not supported: {reason}", param=name, limit="left out", got="given")

    def ignored(self) -> tuple[str, ...]:
        """Name the fields that were never read; call it last. Raises RequestError if the server is strict."""
        rest = [name for name in self._given if name not in self._read]
        if rest and self._strict:
            name = rest[0][:60]
            hint = did_you_mean(name, tuple(self._read))
            raise RequestError(f"unknown field {name!r}{hint}", param=name, limit="a known field")
        return tuple(name for name in rest if name.isascii() and name.isidentifier())[:MOST_NAMED]


def refuse(param: str, limit: str, got: Any) -> NoReturn:
    """Raise the RequestError of a field out of its limits."""
    raise RequestError.of(param, limit, got)
