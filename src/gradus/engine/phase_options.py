"""From what a caller has set to the options that a phase is built with. No torch here.

A phase's engine module names the settings that it heeds, beside limits and max_sequences: `USES = frozenset({...})`.
Setting one that it would ignore is refused: an option that seems to do something is worse than none.
"""

from gradus import phases
from gradus.engine.options import EngineOptions
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError


def options_for(phase: str, limits: ModelLimits, max_sequences: int, **settings: int | str | None) -> EngineOptions:
    """The options of `phase`; a setting that is None keeps the default of EngineOptions.

    Raises ConfigError for a phase that is not there, a setting that it ignores, and a value that cannot be.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    options = EngineOptions(limits, max_sequences, **given)  # type: ignore[arg-type]  # it checks the types itself
    for name in given:
        if name not in used_by(phase):
            users = [other.name for other in phases.available() if name in used_by(other.name)]
            raise ConfigError(f"{name} does nothing in phase {phase}, leave it out; it is for {', '.join(users)}")
    return options


def capacity(phase: str, max_sequences: int) -> int:
    """How many sequences the phase runs at once: as many as asked, unless it does not batch (`CAPACITY = 1`)."""
    return min(max_sequences, getattr(phases.load(phase), "CAPACITY", max_sequences))


def used_by(phase: str) -> frozenset[str]:
    """The optional settings that a phase heeds. Raises ConfigError for a phase that is not there."""
    return getattr(phases.load(phase), "USES", frozenset())
