"""Options that several commands share: the model and its device, and sampling.

The settings of the model and its engine become options by their description (gradus.config). gradus.config,
SamplingParams and the engine check the numbers, as for every other front end; typer only parses them.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

from typer import Option
from typer.models import ArgumentInfo

from gradus.config.description import Setting, described
from gradus.config.settings import Settings
from gradus.engine.structured import Structured
from gradus.errors import RequestError

_SAMPLING = "Sampling"

Command = Callable[..., int]


def settings_of(
    owner: type = Settings, *, only: Collection[str] = (), without: Collection[str] = (), panel: str = ""
) -> Callable[[Command], Command]:
    """Give a command an option for each setting of `owner`, or for those in `only`; they arrive as its `**settings`.

    Settings that were not given are left out, so that the configuration file's value, or the default, applies.
    panel: the help panel that shows them; by default each setting's own.
    """
    every = described(owner)
    offered = {name: every[name] for name in every if name not in without and (not only or name in only)}

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        arguments = [one for one in own if any(isinstance(mark, ArgumentInfo) for mark in _marks(one))]
        options = [one for one in own if one not in arguments]
        parameters = [*arguments, *(_parameter(one, panel) for one in offered.values()), *options]

        @functools.wraps(command)
        def run(**values: Any) -> int:
            given = {name: value for name, value in values.items() if name not in offered or value is not None}
            return command(**given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = signature.replace(parameters=[one.replace(kind=keyword) for one in parameters])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
        return run

    return decorate


def _marks(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """An annotation's metadata, without the type."""
    return getattr(parameter.annotation, "__metadata__", ())


def _parameter(setting: Setting, panel: str) -> inspect.Parameter:
    """Turn a setting into a typer option that is None if it was not given."""
    flag = f"--{setting.name.replace('_', '-')}"
    if setting.default is True:
        flag = f"{flag}/--no-{flag[2:]}"
    several = " May be given several times." if setting.kind is tuple else ""
    only = " For the final engine." if setting.heeded == "final" else ""
    option = Option(
        flag,
        *setting.flags,
        help=f"{setting.help}{several}{only}",
        show_default=setting.by_default,
        rich_help_panel=panel or setting.panel,
        metavar=setting.metavar,
    )
    kind = list[str] if setting.kind is tuple else setting.kind
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


for_one_prompt = settings_of(without=("max_sequences", "policy"))
"""For commands that run one prompt at a time, where the order of requests and their number would mean nothing."""

MaxTokens = Annotated[int | None, Option(help="Most tokens to generate; 256 by default.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float,
    Option(help="0 always takes the likeliest token; 1 samples the model's distribution.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[int, Option(help="Sample among the k likeliest tokens; 0 is off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float,
    Option(
        help="Sample among the likeliest tokens that together reach this probability; 1 is off.",
        rich_help_panel=_SAMPLING,
    ),
]
MinP = Annotated[
    float,
    Option(help="Drop tokens less likely than this share of the likeliest; 0 is off.", rich_help_panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float, Option(help="Make tokens seen in prompt or output less likely; 1 is off.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float, Option(help="Subtract this once from tokens in the output; 0 is off.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float, Option(help="Subtract this for each occurrence in the output; 0 is off.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int | None, Option(help="The same seed gives the same tokens; random by default.", rich_help_panel=_SAMPLING)
]
Samples = Annotated[int, Option("--n", help="Independent samples of the prompt.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None,
    Option(help="End before this text appears; may be given several times.", rich_help_panel=_SAMPLING),
]
IgnoreEos = Annotated[
    bool, Option("--ignore-eos", help="Continue after the model's end-of-text token.", rich_help_panel=_SAMPLING)
]

_STRUCTURED = "What the answer must be"
JsonSchema = Annotated[
    Path | None, Option(help="A file with a JSON schema: the answer is an instance.", rich_help_panel=_STRUCTURED)
]
AnyJson = Annotated[bool, Option("--any-json", help="The answer is any JSON value.", rich_help_panel=_STRUCTURED)]
Regex = Annotated[
    str | None, Option(help="The whole answer matches this regular expression.", rich_help_panel=_STRUCTURED)
]
Grammar = Annotated[
    Path | None, Option(help="A file with a Lark grammar, in llguidance's dialect.", rich_help_panel=_STRUCTURED)
]
Choice = Annotated[
    list[str] | None,
    Option(help="The answer is one of these; may be given several times.", rich_help_panel=_STRUCTURED),
]


def structured(
    json_schema: Path | None, any_json: bool, regex: str | None, grammar: Path | None, choice: list[str] | None
) -> Structured | None:
    """Return the constraint that the options name, if they name one. Raises RequestError."""
    given = {
        "json_schema": None if json_schema is None else _content("--json-schema", json_schema),
        "json": any_json or None,
        "regex": regex,
        "grammar": None if grammar is None else _content("--grammar", grammar),
        "choice": choice or None,
    }
    given = {kind: value for kind, value in given.items() if value is not None}
    return Structured.of(given) if given else None


def _content(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise RequestError(f"{flag} {file}: {reason}", param=flag) from error


Json = Annotated[bool, Option("--json", help="JSON on stdout, for programs.")]
