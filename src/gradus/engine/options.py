"""What a phase's `build` is told beside the model. No torch here."""

from dataclasses import dataclass

from gradus.engine.request import ModelLimits


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """limits: what requests must respect; `limits.context_length` is also the longest sequence the cache must hold."""

    limits: ModelLimits
