"""A rank's model: the sizes of its part, and its rows and columns of a whole model's weights.

The result is a `Model` like any other, so every engine can run it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradus.errors import ConfigError
from gradus.models import Linear, MatrixId, Model, ModelConfig, create_model
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.heads import cut_qkv, heads_of
from phases.p12_parallelism.linear import ColumnParallel, RowParallel, column_part, row_part
from phases.p12_parallelism.place import Place
from phases.p12_parallelism.vocabulary import EmbeddingPart, HeadPart, tokens_of

NO_TOKENS = slice(0, 0)


@dataclass(frozen=True, slots=True)
class Linears:
    """Makes the rank's matrices, by their role: see `gradus.models.LinearFactory`."""

    exchange: Exchange

    def __call__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Linear:
        if matrix_id.role not in ("attn_out", "down"):
            return ColumnParallel(matrix_id, in_features, out_features, bias, dtype, device)
        linear = RowParallel(matrix_id, in_features, out_features, bias, dtype, device)
        linear.exchange = self.exchange
        return linear


@torch.no_grad()
def cut(whole: Model, exchange: Exchange, *, gathers: bool = True) -> Model:
    """Copy this rank's part out of a whole model: its layers, and its part of each matrix of them.

    gathers: whether all ranks get all scores: see HeadPart.
    """
    place = exchange.place
    part = create_model(sizes(whole.config, place), dtype=whole.dtype, device=whole.device, linear=Linears(exchange))
    layers = place.layers(whole.config.num_layers)
    copy(part.layers, nn.ModuleList([whole.layers[index] for index in layers]), whole.config, place)
    for name, child in whole.named_children():
        if name not in ("embedding", "layers", "head", "rotations"):
            copy(part.get_submodule(name), child, whole.config, place)  # norms, learned positions
    # the first stage embeds, and the last one has the head
    tokens = tokens_of(whole.config.vocab_size, place.part, place.parts)
    part.head = HeadPart(whole.head, tokens if place.last else NO_TOKENS, exchange, gathers)
    tied = part.head if whole.config.tie_embeddings else None
    part.embedding = EmbeddingPart(whole.embedding, NO_TOKENS if place.stage else tokens, exchange, tied)
    return part


def sizes(config: ModelConfig, place: Place) -> ModelConfig:
    """The rank's own layers, heads and features. Raises ConfigError for a model that cannot be divided so."""
    layers = place.layers(config.num_layers)
    if config.sizes or config.kv_sources or config.per_layer_width:
        raise ConfigError(
            f"p12 divides layers that are alike, and those of {config.family} differ: see src/gradus/parallel"
        )
    if config.qk_norm_across_heads and place.parts > 1:
        raise ConfigError(f"the heads of {config.family} share a norm, so p12 can divide only its layers (--stages)")
    if config.experts and place.parts > 1:
        raise ConfigError(
            f"p12 cuts every matrix, and the experts of {config.family} stay whole: divide its layers alone "
            "(--stages), or see src/gradus/parallel"
        )
    if config.num_layers < place.stages:
        raise ConfigError(f"{config.num_layers} layers cannot be divided among {place.stages} stages")
    if config.intermediate_size % place.parts:
        raise ConfigError(f"{config.intermediate_size} features cannot be divided among {place.parts} ranks")
    queries, keys = heads_of(config, place.part, place.parts)
    return replace(
        config.stage(layers),
        num_heads=len(queries),
        num_kv_heads=len(keys),
        intermediate_size=config.intermediate_size // place.parts,
    )


def copy(mine: nn.Module, theirs: nn.Module, config: ModelConfig, place: Place) -> None:
    """Copy the part of every parameter."""
    for own, whole in zip(mine.modules(), theirs.modules(), strict=True):
        for name, value in whole.named_parameters(recurse=False):
            own.get_parameter(name).copy_(part_of(whole, value, config, place))


def part_of(module: nn.Module, value: Tensor, config: ModelConfig, place: Place) -> Tensor:
    """This rank's part of one parameter, by its matrix's role. config: of the whole model."""
    role = module.matrix_id.role if isinstance(module, Linear) else None
    if role == "qkv":
        q, k, v = value.split(config.qkv_widths)
        return cut_qkv(q, k, v, config, place.part, place.parts)
    if role == "gate_up":
        return column_part(value, config.up_widths, place.part, place.parts)
    if role in ("attn_out", "down") and value.dim() == 2:
        return row_part(value, place.part, place.parts)
    return value  # norms, and biases that are added after a sum: the same on every rank
