"""Experts as llama.cpp has them: one tensor for all of a layer's, made of the checkpoint's own, however these are cut.

The model's matrix of a stack is between the two: the checkpoint's tensors fill it, llama.cpp's are cut from it.
"""

from collections.abc import Iterator
from itertools import groupby

import gguf
import torch
from torch import Tensor

from gradus.bench.measure.drive import ContenderFailed
from gradus.loading.gguf.experts import STACKS
from gradus.models import ModelConfig, TensorSource, create_model
from gradus.models.families.hf.experts import some_experts
from gradus.models.weights import Piece, plan


class ExpertTensors:
    """A layer's experts and router in both forms. replaced: the checkpoint's names of what `stacks` yields."""

    def __init__(self, config: ModelConfig) -> None:
        model = create_model(config, device="meta")
        theirs = [piece for piece in plan(model, STACKS) if piece.stored.name.startswith("blk.")]
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
    """Write how many experts a layer has, how many a token takes, and how wide they are."""
    experts = some_experts(config)
    writer.add_expert_count(experts.count)
    writer.add_expert_used_count(experts.chosen)
    writer.add_expert_feed_forward_length(experts.width)


def _place(piece: Piece) -> tuple[int, str]:
    return id(piece.module), piece.parameter


def _read(tensors: TensorSource, piece: Piece) -> Tensor:
    value = tensors.read(piece.stored.name)
    if not isinstance(value, Tensor):
        raise ContenderFailed("the checkpoint is quantized already, and would have to be rounded again")
    return piece.stored.convert(value.float())
