"""A JSON object read strictly: a key that is missing, of the wrong type or out of range is one line that names it.

Torch-free.
"""

import reprlib
from collections.abc import Callable
from typing import Any

from gradus.errors import ConfigError

LARGEST = 1 << 24  # of any count in a configuration: far above every real model, low enough to never exhaust memory

REQUIRED: Any = object()
STAND_INS = (64, 2, 1.0, [1.0], "silu")  # one of them is accepted wherever a key is required


class KeyFault(ConfigError):
    """The fault of one key. path: where the file has it. instead: a value with which reading goes on to the next."""

    def __init__(self, path: str, problem: str, instead: Any = None) -> None:
        super().__init__(f"model configuration: {path} {problem}")
        self.path, self.instead = path, instead


class Fields:
    """One JSON object, read strictly. A null counts as absent, as it does for transformers."""

    def __init__(self, raw: object, path: str = "") -> None:
        if not isinstance(raw, dict):
            raise ConfigError(f"model configuration: {path or 'it'} must be a JSON object, got {shown(raw)}")
        self.raw, self.path = raw, f"{path}." if path else ""

    def has(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def integer(self, key: str, default: Any = REQUIRED, least: int = 1, most: int = LARGEST) -> int:
        expected = f"an integer between {least} and {most}"
        return self._read(key, default, expected, lambda value: is_integer(value) and least <= value <= most)

    def number(self, key: str, default: Any = REQUIRED) -> float:
        return float(self._read(key, default, "a number above 0 and below 1e12", _is_number))

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0."""

        def accepts(value: Any) -> bool:
            return isinstance(value, list) and value != [] and all(map(_is_number, value))

        return tuple(map(float, self._read(key, REQUIRED, "a list of numbers above 0", accepts)))

    def boolean(self, key: str, default: bool) -> bool:
        return self._read(key, default, "true or false", lambda value: isinstance(value, bool))

    def text(self, key: str, default: Any = REQUIRED) -> str:
        return self._read(key, default, "a string", lambda value: isinstance(value, str))

    def choice(self, key: str, default: str, choices: dict[str, str]) -> str:
        """The value's meaning in `choices`."""
        value = self._read(
            key, default, f"one of {', '.join(sorted(choices))}", lambda v: isinstance(v, str) and v in choices
        )
        return choices[value]

    def section(self, key: str) -> "Fields":
        """The object under `key`; an empty one when absent."""
        return Fields(self.raw[key] if self.has(key) else {}, f"{self.path}{key}")

    def refuse(self, key: str, reason: str) -> None:
        """These are switches that change the mathematics, off in every model supported here."""
        if self.boolean(key, False):
            raise self.fault(key, f"is set, but {reason}", False)

    def fault(self, key: str, problem: str, instead: Any = None) -> KeyFault:
        return KeyFault(f"{self.path}{key}", problem, instead)

    def _read(self, key: str, default: Any, expected: str, accepts: Callable[[Any], bool]) -> Any:
        if not self.has(key):
            if default is REQUIRED:
                raise self.fault(key, f"is missing (expected {expected})", _stand_in(accepts))
            return default
        value = self.raw[key]
        if not accepts(value):
            instead = _stand_in(accepts) if default is REQUIRED else default
            raise self.fault(key, f"must be {expected}, got {shown(value)}", instead)
        return value


def _stand_in(accepts: Callable[[Any], bool]) -> Any:
    return next((value for value in STAND_INS if accepts(value)), None)


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (is_integer(value) or isinstance(value, float)) and 0 < value < 1e12  # NaN and Infinity fail this too


def shown(value: object) -> str:
    """Short enough for one line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)
