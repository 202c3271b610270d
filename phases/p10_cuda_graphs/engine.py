"""p10: p09 without waits. Steps of decodes are replayed from CUDA graphs, and planned while the one before runs."""

from gradus.assembly.final import EngineConfig
from gradus.assembly.final import build as compose
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p06_chunked_prefill.engine import USES

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    return compose(model, EngineConfig.of(options))
