"""Experts as llama.cpp has them: one tensor for all of a layer's, made of the checkpoint's own, however these are cut.

The model's matrix of a stack is between the two: the checkpoint's tensors fill it, llama.cpp's are cut from it.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby

import gguf
import torch
from torch import Tensor

from gradus.bench.measure.drive import ContenderFailed
from gradus.loading.gguf.experts import APART, SHARED, TOGETHER
from gradus.models import ModelConfig, TensorSource, create_model
from gradus.models.families.hf.experts import dense_layers, shared_width, some_experts, widest_dense
from gradus.models.source import Source
from gradus.models.weights import Piece, plan


class ExpertTensors:
    """A layer's experts and router in both forms. replaced: the checkpoint's tensors that `stacks` replaces."""

    def __init__(self, config: ModelConfig) -> None:
        model = create_model(config, device="meta")
        theirs = [piece for piece in plan(model, layout(config)) if piece.stored.name.startswith("blk.")]
        places = {_place(piece) for piece in theirs}
        self._theirs = [list(pieces) for _, pieces in groupby(theirs, _place)]
        self._ours = {place: list(pieces) for place, pieces in groupby(plan(model), _place) if place in places}
        self.replaced = {piece.stored.name for pieces in self._ours.values() for piece in pieces}

    def stacks(self, tensors: TensorSource) -> Iterator[tuple[str, Tensor]]:
        """Yield llama.cpp's name and values of each tensor. tensors: by the checkpoint's names."""
        for pieces in self._theirs:
            whole = torch.cat([_read(tensors, piece) for piece in self._ours[_place(pieces[0])]])
            for piece in pieces:
                rows = whole[piece.start : piece.start + piece.shape[0]]
                yield piece.stored.name, piece.stored.restore(rows)


def describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Write what a layer's experts are, and the dense MLPs next to them or in their place."""
    experts, shared, dense = some_experts(config), shared_width(config), dense_layers(config)
    writer.add_expert_count(experts.count)
    writer.add_expert_used_count(experts.chosen)
    writer.add_expert_feed_forward_length(experts.width)
    writer.add_feed_forward_length(shared if config.experts_apart else widest_dense(config))
    if shared and not config.experts_apart and not experts.sigmoid:
        writer.add_expert_shared_feed_forward_length(shared)
    if experts.sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(experts.normalized)
        writer.add_expert_weights_scale(experts.scale)
        writer.add_expert_shared_count(shared // experts.width)
        writer.add_leading_dense_block_count(len(dense))
        writer.add_expert_group_count(experts.groups)
        writer.add_expert_group_used_count(experts.chosen_groups)


def unknown(config: ModelConfig, architecture: str) -> str | None:
    """The reason why llama.cpp would compute something different; None if it would not."""
    experts, dense = some_experts(config), dense_layers(config)
    if dense != (list(range(len(dense))) if experts.sigmoid else []):
        return f"{config.family} with layers {dense} that have no experts"
    if not experts.sigmoid and experts.normalized == (architecture in ("qwen2moe", "olmoe")):
        return f"{config.family} whose experts' weights are {'' if experts.normalized else 'not '}divided by their sum"
    return None


def layout(config: ModelConfig) -> Mapping[str, Source]:
    """The tensors of a model's experts, as its architecture has them; none for a model without."""
    if not config.experts:
        return {}
    return TOGETHER if config.experts_apart else {**APART, **SHARED} if shared_width(config) else APART


def _place(piece: Piece) -> tuple[int, str]:
    return id(piece.module), piece.parameter


def _read(tensors: TensorSource, piece: Piece) -> Tensor:
    value = tensors.read(piece.stored.name)
    if not isinstance(value, Tensor):
        raise ContenderFailed("the checkpoint is quantized already, and would have to be rounded again")
    return piece.stored.convert(value.float())
