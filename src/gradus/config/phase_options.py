"""From what a caller has set to the options that an engine is built with. No torch here.

A phase's engine module names the settings that it heeds, beside limits and max_sequences: `USES = frozenset({...})`.
The final engine, which runs where no phase is named, heeds all of them, and two of its own. Setting one that would be
ignored is refused: an option that seems to do something is worse than none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradus import phases
from gradus.config.options import (
    DEFAULT_MAX_SEQUENCES,
    MAX_SEQUENCES,
    MEMORY_FRACTIONS,
    EngineConfig,
    EngineOptions,
    check_switches,
)
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

PAGED = frozenset({"page_size", "cache_tokens", "policy", "token_budget"})
FINAL_ONLY = frozenset({"memory_fraction", "switch_off"})


def options_for(phase: str, limits: ModelLimits, max_sequences: int | None = None, **settings: Any) -> EngineOptions:
    """The options of `phase`; a setting that is None, or names nothing, keeps the default of EngineOptions.

    Raises ConfigError for a phase that is not there, a setting that it ignores, and a value that cannot be.
    """
    given = {name: value for name, value in settings.items() if value not in (None, ())}
    heeded = {name: value for name, value in given.items() if name not in FINAL_ONLY}
    options = EngineOptions(limits, DEFAULT_MAX_SEQUENCES if max_sequences is None else max_sequences, **heeded)
    for name in given:
        if name not in used_by(phase):
            users = [other.name for other in phases.available() if name in used_by(other.name)]
            raise ConfigError(
                f"{name} does nothing in phase {phase}, leave it out; "
                f"it is for {', '.join([*users, 'the final engine'])}"
            )
    return options


def final_options(
    limits: ModelLimits,
    device: str,
    max_sequences: int | None = None,
    *,
    memory_fraction: float | None = None,
    switch_off: Sequence[str] = (),
    **settings: Any,
) -> EngineConfig:
    """The final engine's options on a kind of device ("cpu", "cuda"); what is None is what suits that.

    Raises ConfigError for a value that cannot be, and for switches that do not go together.
    """
    check_switches(switch_off)
    if "chunked" in switch_off and settings.get("token_budget") is not None:
        raise ConfigError("token_budget does nothing with chunked switched off: leave one of them out")
    given = {name: value for name, value in settings.items() if value is not None}
    given |= dict.fromkeys(switch_off, False)
    config = EngineConfig(
        limits,
        MAX_SEQUENCES[device] if max_sequences is None else max_sequences,
        memory_fraction=MEMORY_FRACTIONS[device] if memory_fraction is None else memory_fraction,
        **given,
    )
    # a CPU has none of these, and needs no warning that it has not
    return replace(config, kernels=False, graphs=False) if device == "cpu" else config


def capacity(phase: str, max_sequences: int) -> int:
    """How many sequences the phase runs at once: as many as asked, unless it does not batch (`CAPACITY = 1`)."""
    return min(max_sequences, getattr(phases.load(phase), "CAPACITY", max_sequences))


def used_by(phase: str | None) -> frozenset[str]:
    """The optional settings that a phase heeds; None is the final engine. Raises ConfigError for an unknown phase."""
    return PAGED | FINAL_ONLY if phase is None else getattr(phases.load(phase), "USES", frozenset())
