"""The settings of every front end: the model and its engine, before defaults are filled in. No torch here.

`LLM(…)`, the commands and the server's file take the fields of `Settings` by name. A setting that the engine would
ignore is refused, because an option that only seems to work is worse than none.
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

THE_RUNNERS = (
    "device", "dtype", "quantize", "page_size", "cache_tokens", "kv_dtype", "activations", "memory_fraction",
    "speculate", "draft_quantize", "drafts", "tensor_parallel", "pipeline_parallel", "threads",
)  # fmt: skip
"""Settings of the process that runs the model, where that is another one than the engine's."""
THE_RUNNERS_SWITCHES = ("chunked", "kernels", "graphs")
THE_ENGINES = ("policy", "step_target", "slowdown", "phase", "impl", "runner")
"""Settings that such a process leaves to the engine."""
THE_ENGINES_SWITCHES = ("prefix_cache", "overlap")
NEITHERS = ("prefix_dir", "prefix_dir_size", "host_cache")
"""Settings of an engine that has the memory in its own process."""


@dataclass(frozen=True)
@offers(EngineConfig)
class Settings:
    """The model, the device, and the options of the engine.

    In addition to the fields below, it has one for each setting of EngineConfig; None: the default for engine and
    device. Raises ConfigError, in one line, for an impossible value.
    """

    model: str = setting(
        "smollm2-135m",
        "A name that `gradus models` lists, a folder, a .gguf file, a hub id, or `random:<shape>`.",
        flags=("-m",),
    )
    phase: str | None = setting(
        None, "The phase of the course to run, as in p01.", unset="none: the final engine", flags=("-p",)
    )
    impl: str | None = setting(
        None,
        "A folder or file with your functions of a phase, which replace the course's. The phase may be left out "
        "if the folder has functions of only one phase.",
        unset="none: the course's own",
        heeded="phase",
        metavar="DIR",
    )
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda, or a GPU by its number, as in cuda:1.")
    dtype: str = setting("auto", "auto (bfloat16 on a GPU, measured on a CPU), float32, bfloat16 or float16.")
    quantize: str | None = setting(
        None,
        "Keep matrices in fewer bits: int8, fp8, fp8-block, int4 (in groups of 128, or int4-g64, int4-g32), mxfp4, a "
        "YAML file of patterns and schemes, or stored (in the bits of a .gguf file, whatever dtype says).",
        unset="none: in dtype, or on a CPU, if that is auto, in the bits of a .gguf file",
    )
    context_length: int | None = setting(
        None,
        "Most tokens of prompt and output together.",
        unset="the model's own",
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
            if one.kind is tuple and isinstance(getattr(self, name), list):  # YAML and the command line give lists
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check(self)
        if self.impl is not None and self.phase is None:
            object.__setattr__(self, "phase", phases.phase_in(Path(self.impl)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Make settings from names and values, ignoring values of None. Raises ConfigError for an unknown name."""
        return cls().merge(given)

    def merge(self, given: Mapping[str, Any]) -> Self:
        """Make a copy with these values, ignoring values of None (options that were not given)."""
        return self.replaced({name: value for name, value in given.items() if value is not None})

    def replaced(self, values: Mapping[Any, Any]) -> Self:
        """Make a copy with these values. Raises ConfigError for an unknown name."""
        check_names(values, described(type(self)))
        return replace(self, **values)

    @property
    def remote(self) -> bool:
        """Whether the model runs in another process, which `runner` names."""
        return self.keywords()["runner"] is not None

    def keywords(self) -> dict[str, Any]:
        """The keywords for `LLM`: without a server's own settings."""
        return {name: getattr(self, name) for name in described(Settings)}

    def options(self, limits: ModelLimits, device: str) -> EngineOptions:
        """Make the engine's options on a kind of device ("cpu", "cuda"): an EngineConfig if no phase is named.

        Raises ConfigError for an unknown phase, a setting that the engine ignores, or incompatible switches.
        """
        given = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) is not None}
        if self.phase is not None:
            self._refuse_ignored(self.phase)
            return EngineOptions(limits, **given)
        if self.remote:
            self._refuse_the_runners()
        for name in ("token_budget", "slowdown", "step_target"):
            if "chunked" in self.switch_off and given.get(name):
                raise ConfigError(f"{name} does nothing with chunked switched off: leave one of them out")
        if "slowdown" in given and not given.get("step_target"):
            raise ConfigError("slowdown does nothing without step_target: set step_target, or leave slowdown out")
        suiting = {name: one.suits[device] for name, one in SETTINGS.items() if device in one.suits}
        # optimizations that this kind of device does not have are off, without a warning
        absent = {name: False for name, one in SWITCHES.items() if not one.suits.get(device, True)}
        chosen = suiting | given | absent | dict.fromkeys(self.switch_off, False)
        yielding = (suiting.keys() | SWITCHES.keys()) - given.keys() - set(self.switch_off)
        return EngineConfig(limits, **chosen, yielding=frozenset(yielding))

    def _refuse_the_runners(self) -> None:
        """Raise ConfigError for what an engine without a model of its own would ignore."""
        for name in NEITHERS:
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} does not work with a runner in another process yet: leave one of them out")
        unset = {one.name: one.default for one in fields(Settings)}
        given = [name for name in THE_RUNNERS if getattr(self, name) != unset[name]]
        given += [f"switch_off {name}" for name in THE_RUNNERS_SWITCHES if name in self.switch_off]
        if given:
            raise ConfigError(
                f"{given[0]} does nothing with a runner in another process: give it to gradus deploy runner, or leave "
                "it out"
            )

    def _refuse_ignored(self, phase: str) -> None:
        given = [one.name for one in fields(Settings) if getattr(self, one.name) != one.default]
        for name in given:
            if name not in heeded(phase):
                users = [other.name for other in phases.engines() if name in heeded(other.name)]
                raise ConfigError(
                    f"{name} does nothing in phase {phase}, leave it out; "
                    f"it is for {', '.join([*users, 'the final engine'])}"
                )


def heeded(phase: str | None) -> frozenset[str]:
    """The names of the settings that a phase uses; None: the final engine, which uses all except those of phases.

    A phase's engine module names its own, in addition to those that all engines use: `USES = frozenset({...})`.
    Raises ConfigError for an unknown phase.
    """
    every = described(Settings)
    if phase is None:
        return frozenset(name for name, one in every.items() if one.heeded != "phase")
    used: frozenset[str] = getattr(phases.load(phase), "USES", frozenset())
    return used | {name for name, one in every.items() if one.heeded in ("all", "phase")}


def capacity(phase: str | None, max_sequences: int) -> int:
    """The number of sequences that run at once: as many as asked for, unless the phase does not batch (`CAPACITY =
    1`)."""
    most = max_sequences if phase is None else getattr(phases.load(phase), "CAPACITY", max_sequences)
    return min(max_sequences, most)


def stated(phase: str | None, options: EngineOptions, token_budget: int | None) -> dict[str, Any]:
    """The engine's name, and the final values of the settings that it uses, for `/stats`. Those of a runner in another
    process are left out, except for its sizes.

    token_budget: the scheduler's, since a phase may choose its own.
    """
    turned_out = {
        "max_sequences": capacity(phase, options.max_sequences),
        "cache_tokens": options.cache_positions,
        "token_budget": token_budget,
    }
    elsewhere: tuple[str, ...] = ()
    if isinstance(options, EngineConfig) and options.runner is not None:
        turned_out["page_size"] = options.page_size
        elsewhere = (*THE_RUNNERS, *THE_RUNNERS_SWITCHES, *NEITHERS)
    names = [name for name in SETTINGS if name in heeded(phase) and (name in turned_out or name not in elsewhere)]
    values = {name: turned_out[name] if name in turned_out else getattr(options, name) for name in names}
    if isinstance(options, EngineConfig):
        values["switches"] = {name: getattr(options, name) for name in SWITCHES if name not in elsewhere}
    return {"engine": phase or FINAL, **values}
