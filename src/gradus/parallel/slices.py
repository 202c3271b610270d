"""A rank's slice of a checkpoint: the same names, with the shapes of the rank's model.

The loader needs no change: it reads the rank's model from this source, as it reads a whole model from a file.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn

from gradus.errors import ConfigError
from gradus.models.config import Experts, ModelConfig, Shard
from gradus.models.heads import Heads
from gradus.models.layers import Linear, MatrixId, Model
from gradus.models.source import ByExpert, Shape
from gradus.models.weights import CheckedSource, Piece, Prepared, plan
from gradus.parallel.place import Place

Cut = Callable[[Tensor], Tensor]
"""Takes a tensor in the model's layout, [rows, columns] or [rows], and returns this rank's part."""


class Slices:
    """The tensors of a checkpoint, cut for one rank.

    whole: the whole model, its parameters without memory (device "meta"). part: the rank's model, with the whole one's
    modules `kept`, by id. source: the whole model's tensors, checked against it. layout: as in
    `gradus.models.weights.layout_of`.
    """

    def __init__(self, whole: Model, part: Model, kept: set[int], source: CheckedSource, shard: Shard) -> None:
        self._source, self.layout = source, source.layout
        self._names: dict[str, str] = {}  # in the part → in the whole
        self._cuts: dict[str, Cut] = {}
        self._shapes: dict[str, Shape] = {}
        there_too = [each for each in _numbered(plan(whole, self.layout)) if id(each[0].module) in kept]
        mine = [each for each in there_too if _held(whole.config, *each, shard)]
        for here, (piece, number) in zip(plan(part, self.layout), mine, strict=True):
            name, there = here.stored.name, piece.stored.name
            cut = cut_of(whole, piece.module, piece.parameter, piece.shape[0], number, shard)
            self._names[name], self._cuts[name] = there, _in_the_file(piece, here, cut)
            # cut a tensor without memory, to learn the result's shape
            self._shapes[name] = tuple(self._cuts[name](torch.empty(source.shape(there), device="meta")).shape)

    def names(self) -> Iterable[str]:
        return self._cuts

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def read(self, name: str) -> Tensor | Prepared:
        value = self._source.read(self._names[name])
        if not isinstance(value, Tensor):
            raise ConfigError("quantized weights cannot be cut for several ranks yet: load the unquantized model")
        return self._cuts[name](value).contiguous()

    def where(self, name: str) -> str:
        return self._source.where(self._names[name])


def modules_of(whole: Model, place: Place) -> set[int]:
    """Collect the ids of the modules that a rank has a part of: all except those of other stages."""
    layers = place.layers(whole.config.num_layers)
    others = [layer for index, layer in enumerate(whole.layers) if index not in layers]
    others += [getattr(whole, name) for name in left_out(whole.config, place)]
    return {id(module) for module in whole.modules()} - {id(module) for layer in others for module in layer.modules()}


def left_out(config: ModelConfig, place: Place) -> list[str]:
    """Name the model's ends that a stage does without: only the first embeds tokens, and only the last has the head.

    Tied ends are one tensor, so a stage that needs one of them keeps both.
    """
    embedding, head = place.first, place.last
    if config.tie_embeddings:
        embedding = head = embedding or head
    return [*([] if embedding else ["embedding"]), *([] if head else ["head"])]


def cut_of(whole: Model, module: nn.Module, parameter: str, rows: int, number: int, shard: Shard) -> Cut:
    """Choose the cut of one tensor of the whole model, by its matrix's role.

    rows: the tensor's. The tensor is a whole parameter, or piece `number` of one (q, k and v are pieces 0, 1 and 2).
    """
    if isinstance(module, Linear) and module.matrix_id.layer is not None:
        return _cut_in_layer(whole.config, module.matrix_id, parameter, rows, number, shard)
    tables = [whole.get_submodule(name) for name in whole.token_tables]
    if module is whole.head or any(module is table for table in tables):
        return _vocabulary(shard.tokens)
    if isinstance(module, Heads):  # its own tensors are the sinks, one for each query head
        return _rows([shard.heads])
    heads = _heads_of_norm(whole, module, shard)
    return _all if heads is None else _rows([_spread(heads, whole.config.head_dim)])


def _heads_of_norm(whole: Model, module: nn.Module, shard: Shard) -> range | None:
    """Find the rank's heads of a norm that all heads of a token share (OLMo). None: the module is no such norm."""
    for heads in whole.modules():
        if isinstance(heads, Heads) and heads.across_heads:
            if module is heads.q_norm:
                return shard.heads
            if module is heads.k_norm:
                return shard.kv_heads
    return None


def _cut_in_layer(
    config: ModelConfig, matrix_id: MatrixId, parameter: str, rows: int, number: int, shard: Shard
) -> Cut:
    """Choose the cut of one tensor of a layer's matrix. The two around a layer's own embedding are whole everywhere."""
    role, layer = matrix_id
    assert layer is not None
    sizes = config.layer(layer)
    own = sizes.shard(shard.rank, shard.ranks)
    if role == "qkv":
        widths = config.qkv_parts(layer)
        parts = [_spread(heads, sizes.head_dim) for heads in (own.heads, own.kv_heads, own.kv_heads)]
        return _rows(_places(parts[: len(widths)], widths, rows, number))
    if role == "gate_up":
        return _rows(_places([own.features] * len(sizes.up_widths), sizes.up_widths, rows, number))
    if role in ("attn_out", "down"):
        columns = _spread(own.heads, sizes.head_dim) if role == "attn_out" else own.features
        return _columns(columns) if parameter == "weight" else _all  # a bias is added once, after the sum
    if role in ("experts_up", "experts_down"):
        return _experts(config, matrix_id, rows, number, shard)
    return _all


def _experts(config: ModelConfig, matrix_id: MatrixId, rows: int, number: int, shard: Shard) -> Cut:
    """The rank's experts of a stack; a tensor of one expert is whole."""
    experts = _experts_of(config, matrix_id)
    each, parts = (experts.width, len(config.up_widths)) if matrix_id.role == "experts_up" else (config.hidden_size, 1)
    if rows == each:
        return _all
    own, widths = _spread(_own(experts, shard), each), (experts.count * each,) * parts
    return _rows(_places([own] * parts, widths, rows, number))


def _own(experts: Experts, shard: Shard) -> range:
    each = experts.count // shard.ranks
    return range(shard.rank * each, (shard.rank + 1) * each)


def _held(config: ModelConfig, piece: Piece, number: int, shard: Shard) -> bool:
    """Whether the rank has a tensor at all: other ranks' experts may have tensors of their own."""
    if not isinstance(piece.stored, ByExpert):
        return True
    experts = _experts_of(config, cast(Linear, piece.module).matrix_id)
    return number % experts.count in _own(experts, shard)


def _experts_of(config: ModelConfig, matrix_id: MatrixId) -> Experts:
    assert matrix_id.layer is not None
    return cast(Experts, config.experts_at(matrix_id.layer))


def _numbered(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, int]]:
    """Number the tensors of each parameter from 0."""
    for _, same in groupby(pieces, lambda piece: (id(piece.module), piece.parameter)):
        yield from ((piece, number) for number, piece in enumerate(same))


def _in_the_file(whole: Piece, part: Piece, cut: Cut) -> Cut:
    """Cut a tensor in the file's own layout: GPT-2 stores matrices transposed, and Phi's rows are in another order."""
    return lambda value: part.stored.restore(cut(whole.stored.convert(value)))


def _spread(units: range, width: int) -> range:
    """Convert a range of heads to the range of their rows."""
    return range(units.start * width, units.stop * width)


def _places(parts: list[range], widths: tuple[int, ...], rows: int, number: int) -> list[range]:
    """Find a rank's rows in a tensor that holds one of the parts, or all of them stacked."""
    if rows != sum(widths):
        return [parts[number]]
    starts = [sum(widths[:index]) for index in range(len(widths))]
    return [range(start + part.start, start + part.stop) for start, part in zip(starts, parts, strict=True)]


def _rows(parts: list[range]) -> Cut:
    return lambda value: torch.cat([value[part.start : part.stop] for part in parts])


def _columns(part: range) -> Cut:
    return lambda value: value[:, part.start : part.stop]


def _vocabulary(tokens: range) -> Cut:
    """Cut rows of the vocabulary. Rows beyond its end belong to no token, and are zeros."""

    def cut(value: Tensor) -> Tensor:
        found = value[tokens.start : tokens.stop]
        missing = len(tokens) - found.shape[0]
        return torch.cat([found, found.new_zeros(missing, *found.shape[1:])]) if missing else found

    return cut


def _all(value: Tensor) -> Tensor:
    return value
