"""Every mistake that a user can make, as one line: what, where, the limit, what to do.

The command line and the HTTP server print `str(error)` and nothing else; anything that is not a `GradusError` is a
defect of ours and keeps its traceback.
"""

from typing import Any, Self

LONGEST_VALUE = 60  # characters of a value in a message


class GradusError(Exception):
    """A mistake the user can mend. Its text is complete: no traceback is needed to act on it."""


class ConfigError(GradusError):
    """A configuration (a model's, a server's, a phase's name) that cannot be used."""


class CheckpointError(GradusError):
    """Weights that are missing, damaged, or do not fit the configuration. Names the file and the tensor."""


class CapacityError(GradusError):
    """The engine takes no more work just now; the same request may succeed later."""


class RequestError(GradusError):
    """A request that can never be served as it stands.

    param: the field at fault; limit: the allowed values, in words; got: the value given (shortened, safe to print).
    """

    def __init__(self, message: str, *, param: str, limit: str = "", got: Any = None) -> None:
        super().__init__(message)
        self.param = param
        self.limit = limit
        self.got = got

    @classmethod
    def of(cls, param: str, limit: str, got: Any, *, bare: bool = False) -> Self:
        """Say that `param` must be `limit`, and which value was given, shortened to one line.

        got: the value, which is written as Python writes it. bare: a text is written without quotes.
        """
        shown = " ".join((got if bare and isinstance(got, str) else _written(got)).split())  # an array's has lines
        shown = shown if len(shown) <= LONGEST_VALUE else shown[: LONGEST_VALUE - 3] + "…"
        return cls(f"{param} must be {limit}, got {shown}", param=param, limit=limit, got=shown)


def _written(got: Any) -> str:
    """Write a value as Python does, except numbers with more digits than Python converts to text."""
    try:
        return repr(got)
    except ValueError:
        return f"a {type(got).__name__} too long to write"
