"""A setting described once, in the metadata of a dataclass field; checks, flags, keywords and tables follow from it."""

import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from gradus.errors import ConfigError

Class = TypeVar("Class", bound=type)

DEVICES = {"cpu": "a CPU", "cuda": "a GPU"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    kind: str, int, float, bool (a switch of the final engine) or tuple (of texts). optional: whether None is a value.
    unset: the meaning of None, in words. suits: the final engine's default by kind of device, if it depends on it.
    least, above, most: bounds of a number. unit: "seconds", for people. choices: the allowed texts.
    heeded: the engines that use it: "all", every "phase", the phases that name it in `USES`, or only the "final"
    engine.
    flags: other spellings of its option. metavar: the name of its value in help. panel: its panel in help.
    """

    default: Any
    help: str
    unset: str = ""
    suits: Mapping[str, Any] = field(default_factory=dict)
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    heeded: Literal["all", "phase", "uses", "final"] = "all"
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = "Model"
    name: str = ""
    kind: type = object
    optional: bool = False

    def check(self, value: Any) -> None:
        """Raise ConfigError, in one line, for a value that this setting does not accept."""
        if value is None and self.optional:
            return
        if not self._is_kind(value) or not self._within(value):
            raise ConfigError(f"{self.name} must be {self.wanted}, got {value!r}")
        for text in value if self.kind is tuple and self.choices else ():
            if text not in self.choices:
                raise ConfigError(f"{self.name} takes {', '.join(self.choices)}, got {text!r}")

    def _is_kind(self, value: Any) -> bool:
        if self.kind is tuple:
            return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
        # in Python True is an int; `port: yes` in a file does not mean port 1
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, (int, float) if self.kind is float else self.kind)

    def _within(self, value: Any) -> bool:
        if self.kind is str:
            return not self.choices or value in self.choices
        if self.kind not in (int, float):
            return True
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def wanted(self) -> str:
        """Describe the allowed values in words: "a whole number, 1 or more"."""
        if self.choices and self.kind is str:
            return f"one of {', '.join(self.choices)}"
        words = {str: "text", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}
        return words[self.kind] + (f" of {self.unit}" if self.unit else "") + self._bounds()

    def _bounds(self) -> str:
        most = "" if self.most is None else f"{self.most:g}"
        if self.above is not None:
            return f" above {self.above:g}" + (f" and at most {most}" if most else "")
        if self.least is not None:
            return f" between {self.least:g} and {most}" if most else f", {self.least:g} or more"
        return ""

    @property
    def by_default(self) -> str:
        """The default in words: "8; the final engine: 8 on a CPU, 256 on a GPU"."""
        given = "" if self.default in (None, ()) else f"{self.default:g}" if self.kind is float else str(self.default)
        given = ("on" if self.default else "off") if self.kind is bool else given
        suiting = ", ".join(f"{value} on {DEVICES[device]}" for device, value in self.suits.items())
        if suiting and self.heeded != "final":
            suiting = f"the final engine: {suiting}"
        return "; ".join(part for part in (given or self.unset, suiting) if part) + (
            f" {self.unit}" if self.unit else ""
        )


def setting(default: Any, help: str, **description: Any) -> Any:
    """Make a dataclass field that is a setting. The other arguments are those of `Setting`."""
    return field(default=default, metadata={"setting": Setting(default=default, help=help, **description)})


_DESCRIBED: dict[type, Mapping[str, Setting]] = {}  # an engine asks a dozen times, and hints take 1 ms to read


def described(owner: type) -> Mapping[str, Setting]:
    """The settings among a dataclass's fields, in order."""
    if owner not in _DESCRIBED:
        hints = typing.get_type_hints(owner)
        _DESCRIBED[owner] = types.MappingProxyType(
            {
                one.name: _typed(one.metadata["setting"], one.name, hints[one.name])
                for one in fields(owner)
                if "setting" in one.metadata
            }
        )
    return _DESCRIBED[owner]


def _typed(setting: Setting, name: str, hint: Any) -> Setting:
    """Add the name of the field, and the type from its annotation."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    parts = typing.get_args(hint) if union else (hint,)
    (kind,) = (part for part in parts if part is not types.NoneType)
    choices = setting.choices
    if typing.get_origin(kind) is Literal:
        kind, choices = str, typing.get_args(kind)
    kind = typing.get_origin(kind) or kind
    return replace(setting, name=name, kind=kind, optional=types.NoneType in parts, choices=choices)


def check(owner: Any) -> None:
    """Check every setting of a dataclass's instance. Raises ConfigError for the first wrong one."""
    for name, one in described(type(owner)).items():
        one.check(getattr(owner, name))


def check_names(names: Iterable[Any], known: Iterable[str]) -> None:
    """Raise ConfigError for an unknown name, suggesting the nearest one, or listing all."""
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; there are {', '.join(known)}"
            raise ConfigError(f"unknown setting {str(name)!r}{hint}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or "" if no known name is near."""
    near = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def offers(owner: type) -> Callable[[Class], Class]:
    """A class decorator, below `@dataclass`: adds a field for each setting of `owner` except its switches, None by
    default.

    None means the engine's own default, so the description keeps the owner's.
    """

    def add(front: Class) -> Class:
        for name, one in described(owner).items():
            if one.kind is not bool:
                front.__annotations__[name] = one.kind | None
                setattr(front, name, field(default=None, metadata={"setting": one}))
        return front

    return add


def keywords(owner: type) -> Callable[[Class], Class]:
    """A class decorator: `help` and interactive editors show a keyword of the constructor for each setting of `owner`.

    The constructor's own parameters come first; its last one is `**settings`, which receives the settings.
    """

    def show(front: Class) -> Class:
        own = list(inspect.signature(front).parameters.values())[:-1]
        taken = {parameter.name for parameter in own}
        offered = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=one.kind | None)
            for name, one in described(owner).items()
            if name not in taken
        ]
        front.__signature__ = inspect.Signature([*own, *offered])  # type: ignore[attr-defined]
        lines = (f"    {name}: {one.help} Default: {one.by_default}." for name, one in described(owner).items())
        front.__doc__ = "\n".join([inspect.getdoc(front) or "", "", "Settings:", *lines])
        return front

    return show
