"""Parts that the config.json of models with experts share."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import Experts, LayerSizes, ModelConfig
from gradus.models.families.hf.fields import Fields, is_integer, shown


def expert_count(fields: Fields, absent: int) -> int:
    """How many experts a layer has: of published files' key, or of transformers 5's."""
    return fields.integer("num_experts", fields.integer("num_local_experts", absent))


def in_layers(experts: Experts, layers: int, dense: Collection[int], keys: str) -> tuple[Experts | None, ...]:
    """The experts of every layer but those that are dense. keys: those of the file that say which.

    Raises ConfigError if no layer has experts.
    """
    each = tuple(None if layer in dense else experts for layer in range(layers))
    if not any(each):
        raise ConfigError(f"model configuration: {keys} leaves none of {layers} layers with experts")
    return each


def dense_by_list_or_step(fields: Fields, layers: int) -> set[int]:
    """The layers without experts: those that mlp_only_layers names, and all but every decoder_sparse_step-th."""
    named, step = fields.raw.get("mlp_only_layers"), fields.integer("decoder_sparse_step", 1)
    named = [] if named is None else named
    if not isinstance(named, list) or not all(map(is_integer, named)):
        raise fields.fault("mlp_only_layers", f"must be a list of layers' numbers, got {shown(named)}")
    return {*named, *(layer for layer in range(layers) if (layer + 1) % step)}


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


def dense_layers(config: ModelConfig) -> list[int]:
    """The layers that have none."""
    return [layer for layer in range(config.num_layers) if config.experts_at(layer) is None]


def widest_dense(config: ModelConfig) -> int:
    """Features of the dense MLP of layers without experts; those of one expert, if every layer has experts."""
    dense = [config.layer(layer).intermediate_size for layer in dense_layers(config)]
    return max(dense, default=some_experts(config).width)


def shared_width(config: ModelConfig) -> int:
    """Features of the dense MLP next to experts; 0: there is none."""
    beside = next(layer for layer, each in enumerate(config.experts) if each is not None)
    return config.layer(beside).intermediate_size


def spelled_choice(config: ModelConfig) -> dict[str, Any]:
    """Keys of most families."""
    experts = some_experts(config)
    return {"num_experts_per_tok": experts.chosen, "norm_topk_prob": experts.normalized}
