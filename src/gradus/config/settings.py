"""What every front end offers, the same for all: a model and its engine, before defaults are filled in. No torch here.

`LLM(…)`, the commands and the server's file take the settings of `Settings` by name. Setting one that the engine would
ignore is refused: an option that seems to do something is worse than none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from gradus import phases
from gradus.config.description import check, check_names, described, offers, setting
from gradus.config.options import FINAL, SETTINGS, SWITCHES, EngineConfig, EngineOptions
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError


@dataclass(frozen=True)
@offers(EngineConfig)
class Settings:
    """Which model runs where, and how its engine is built.

    Beside the fields below it has one for each setting of EngineConfig; None is what suits the engine and the device.
    Raises ConfigError, in one line, for a value that cannot be.
    """

    model: str = setting(
        "smollm2-135m",
        "A name that `gradus models` lists, a folder, a .gguf file, a hub id, or `random:<shape>`.",
        flags=("-m",),
    )
    phase: str | None = setting(
        None, "The phase of the course that runs it, as in p01.", unset="none: the final engine", flags=("-p",)
    )
    impl: str | None = setting(
        None,
        "A folder or file with your functions of a phase; they run in place of the course's. The phase may be left out "
        "if the folder has functions of one phase only.",
        unset="none: the course's own",
        heeded="phase",
        metavar="DIR",
    )
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda, or a GPU by its number, as in cuda:1.")
    dtype: str = setting("auto", "auto (bfloat16 on a GPU, measured on a CPU), float32, bfloat16 or float16.")
    quantize: str | None = setting(
        None,
        "Keep matrices in fewer bits: int8, fp8, fp8-block, int4 (in groups of 128, or int4-g64, int4-g32), a YAML "
        "file of patterns and schemes, or stored: as a .gguf file has them, if that is Q8_0, Q4_0 or Q4_1.",
        unset="none: as dtype says",
    )
    context_length: int | None = setting(
        None,
        "Most tokens of prompt and output together.",
        unset="what the model was made for",
        least=1,
        flags=("--max-context",),
    )
    switch_off: tuple[str, ...] = setting(
        (),
        f"Optimizations to leave out: {', '.join(SWITCHES)}.",
        unset="none",
        choices=tuple(SWITCHES),
        heeded="final",
    )

    def __post_init__(self) -> None:
        for name, one in described(type(self)).items():
            if one.kind is tuple and isinstance(getattr(self, name), list):  # as YAML and the command line have it
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check(self)
        if self.impl is not None and self.phase is None:
            object.__setattr__(self, "phase", phases.phase_in(Path(self.impl)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From names and values, those that are None left out. Raises ConfigError for a name that no setting has."""
        return cls().merge(given)

    def merge(self, given: Mapping[str, Any]) -> Self:
        """A copy with these values, those that are None left out (an option that was not given)."""
        return self.replaced({name: value for name, value in given.items() if value is not None})

    def replaced(self, values: Mapping[Any, Any]) -> Self:
        """A copy with these values."""
        check_names(values, described(type(self)))
        return replace(self, **values)

    def keywords(self) -> dict[str, Any]:
        """What `LLM` takes: of a server's configuration, without the server's own settings."""
        return {name: getattr(self, name) for name in described(Settings)}

    def options(self, limits: ModelLimits, device: str) -> EngineOptions:
        """What the engine is built with on a kind of device ("cpu", "cuda"): an EngineConfig where no phase is named.

        Raises ConfigError for a phase that is not there, a setting that the engine ignores, and switches that do not go
        together.
        """
        given = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) is not None}
        if self.phase is not None:
            self._refuse_ignored(self.phase)
            return EngineOptions(limits, **given)
        if "chunked" in self.switch_off and "token_budget" in given:
            raise ConfigError("token_budget does nothing with chunked switched off: leave one of them out")
        suiting = {name: one.suits[device] for name, one in SETTINGS.items() if device in one.suits}
        # what this kind of device does not have at all is off, and needs no warning
        absent = {name: False for name, one in SWITCHES.items() if not one.suits.get(device, True)}
        chosen = suiting | given | absent | dict.fromkeys(self.switch_off, False)
        yielding = (suiting.keys() | SWITCHES.keys()) - given.keys() - set(self.switch_off)
        return EngineConfig(limits, **chosen, yielding=frozenset(yielding))

    def _refuse_ignored(self, phase: str) -> None:
        given = [one.name for one in fields(Settings) if getattr(self, one.name) != one.default]
        for name in given:
            if name not in heeded(phase):
                users = [other.name for other in phases.available() if name in heeded(other.name)]
                raise ConfigError(
                    f"{name} does nothing in phase {phase}, leave it out; "
                    f"it is for {', '.join([*users, 'the final engine'])}"
                )


def heeded(phase: str | None) -> frozenset[str]:
    """Names of the settings that a phase heeds; None is the final engine, which heeds all but a phase's.

    A phase's engine module names them, beside those that all engines heed: `USES = frozenset({...})`.
    Raises ConfigError for an unknown phase.
    """
    every = described(Settings)
    if phase is None:
        return frozenset(name for name, one in every.items() if one.heeded != "phase")
    used: frozenset[str] = getattr(phases.load(phase), "USES", frozenset())
    return used | {name for name, one in every.items() if one.heeded in ("all", "phase")}


def capacity(phase: str | None, max_sequences: int) -> int:
    """How many sequences it runs at once: as many as asked, unless the phase does not batch (`CAPACITY = 1`)."""
    most = max_sequences if phase is None else getattr(phases.load(phase), "CAPACITY", max_sequences)
    return min(max_sequences, most)


def stated(phase: str | None, options: EngineOptions, token_budget: int | None) -> dict[str, Any]:
    """Which engine this is, and the settings that it heeds, as they turned out: what `/stats` shows.

    token_budget: the scheduler's, since a phase may choose its own.
    """
    turned_out = {
        "max_sequences": capacity(phase, options.max_sequences),
        "cache_tokens": options.cache_positions,
        "token_budget": token_budget,
    }
    names = [name for name in SETTINGS if name in heeded(phase)]
    values = {name: turned_out[name] if name in turned_out else getattr(options, name) for name in names}
    if isinstance(options, EngineConfig):
        values["switches"] = {name: getattr(options, name) for name in SWITCHES}
    return {"engine": phase or FINAL, **values}
