"""Meanings of a request's fields, in words, each kept with its field: for `help`, and for the server's schema."""

import inspect
import textwrap
from dataclasses import field, fields
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def param(meaning: str, **default: Any) -> Any:
    """Make a dataclass field that carries its meaning. The other arguments are those of `dataclasses.field`."""
    return field(metadata={"meaning": meaning}, **default)


def meanings(owner: type) -> dict[str, str]:
    """Map the name of each field of a dataclass to its meaning, in their order."""
    return {one.name: one.metadata["meaning"] for one in fields(owner)}


def documented(owner: Class) -> Class:
    """Add each field's meaning to the docstring of a dataclass. A class decorator, above `@dataclass`."""
    lines = [
        textwrap.fill(f"{name}: {meaning}", 116, subsequent_indent="    ") for name, meaning in meanings(owner).items()
    ]
    owner.__doc__ = "\n".join([inspect.getdoc(owner) or "", "", *lines])
    return owner
