"""llguidance: imported at the first request that needs it, and its errors as one line.

The library reports most problems by a matcher's error state. It may also raise: ValueError and OverflowError for what
does not fit its types, and pyo3's PanicException, which derives from BaseException, if an assertion of its own fails.
"""

import re
from typing import Any, Literal

from gradus.errors import RequestError

INSTALL = "pip install 'llguidance>=1.8,<2'"
LONGEST_REASON = 240


def llguidance() -> Any:
    """Import llguidance. Raises RequestError, naming the command that installs it, where it is missing."""
    try:
        import llguidance
    except ImportError as error:
        raise refusal(f"llguidance, which structured output needs, is not installed: {INSTALL}") from error
    return llguidance


def refusal(reason: str, *, limit: str = "", got: Any = None) -> RequestError:
    """Make the error of a constraint that can't be kept: one line."""
    return RequestError(f"structured: {reason}", param="structured", limit=limit, got=got)


class Failed(Exception):
    """The library failed in a way of its own; its text is one line."""


class guarded:
    """Turn whatever the library raises, a panic included, into `Failed`."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if error is None or isinstance(error, _PASSED):
            return False
        raise Failed(one_line(f"{type(error).__name__}: {error}")) from error


_PASSED = (Failed, RequestError, KeyboardInterrupt, SystemExit, GeneratorExit)


def one_line(text: str) -> str:
    """Keep the reason of an error text: no parser state, no quoted source, no advice for callers of the library."""
    lines = re.split(r"<state>|<non-verbose/>", text)[0].splitlines()
    quoted = (number for number, line in enumerate(lines) if re.match(r"\s*\d+ \| ", line))
    reason = " ".join(" ".join(lines[: next(quoted, len(lines))]).split())
    reason = re.sub(r"^(Parser Error|parser error|lexer error): |\.? Enable 'coerce_one_of'.*", "", reason)
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"
