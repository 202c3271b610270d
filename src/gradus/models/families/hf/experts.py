"""Parts that the config.json of models with experts share."""

from dataclasses import replace

from gradus.models.config import Experts, LayerSizes, ModelConfig
from gradus.models.families.hf.fields import Fields


def expert_count(fields: Fields, absent: int) -> int:
    """How many experts a layer has: of published files' key, or of transformers 5's."""
    return fields.integer("num_experts", fields.integer("num_local_experts", absent))


def with_dense_layers(config: ModelConfig, shared: int = 0) -> ModelConfig:
    """The configuration with its dense MLP in layers without experts alone. shared: features of the one next to
    experts, which all tokens share."""
    widths = [config.intermediate_size if each is None else shared for each in config.experts]
    if len(set(widths)) == 1:
        return replace(config, intermediate_size=widths[0])
    sizes = tuple(LayerSizes(config.num_kv_heads, config.head_dim, width) for width in widths)
    return replace(config, sizes=sizes)


def some_experts(config: ModelConfig) -> Experts:
    """The experts of the layers that have some."""
    return next(each for each in config.experts if each is not None)


def widest_dense(config: ModelConfig) -> int:
    """Features of the dense MLP of layers without experts; those of one expert, if every layer has experts."""
    dense = [config.layer(layer).intermediate_size for layer, each in enumerate(config.experts) if each is None]
    return max(dense, default=some_experts(config).width)
