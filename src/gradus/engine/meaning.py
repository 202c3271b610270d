"""What a field of a request means, kept with the field: `help` shows it, and the server's schema says it to clients."""

import inspect
import textwrap
from dataclasses import field, fields
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def param(meaning: str, **default: Any) -> Any:
    """A dataclass field and what it means, in words. The other arguments are those of `dataclasses.field`."""
    return field(metadata={"meaning": meaning}, **default)


def meanings(owner: type) -> dict[str, str]:
    """What each field of a dataclass means, by its name, in their order."""
    return {one.name: one.metadata["meaning"] for one in fields(owner)}


def documented(owner: Class) -> Class:
    """A class decorator, above `@dataclass`: the docstring goes on with what each field means."""
    lines = [
        textwrap.fill(f"{name}: {meaning}", 116, subsequent_indent="    ") for name, meaning in meanings(owner).items()
    ]
    owner.__doc__ = "\n".join([inspect.getdoc(owner) or "", "", *lines])
    return owner
