"""The source of a parameter: which tensors of a checkpoint, and how they are stored there.

A checkpoint names and cuts its tensors in its own way. Each model file says how in a table, our parameter → theirs:

    "layers.{}.qkv.weight": ("model.layers.{}.self_attn.q_proj.weight", …k_proj…, …v_proj…)   several, one above another
    "layers.{}.qkv.weight": Transposed("h.{}.attn.c_attn.weight")                             [in, out] in the file

`{}` is the layer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, arange, empty_like

from gradus.models.config import ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint, taken as it is."""

    name: str

    def file_shape(self, shape: Shape) -> Shape:
        """The tensor's shape in the file if it has `shape` here."""
        return shape

    def convert(self, value: Tensor) -> Tensor:
        return value

    def restore(self, value: Tensor) -> Tensor:
        """`convert` backwards."""
        return value


@dataclass(frozen=True)
class Transposed(Stored):
    """[in, out] in the file: GPT-2's matrices."""

    def file_shape(self, shape: Shape) -> Shape:
        return shape[::-1]

    def convert(self, value: Tensor) -> Tensor:
        return value.T

    def restore(self, value: Tensor) -> Tensor:
        return value.T


@dataclass(frozen=True)
class OnePlus(Stored):
    """Scales that the file keeps as their distance from 1: Gemma's norms."""

    def convert(self, value: Tensor) -> Tensor:
        return 1.0 + value.float()

    def restore(self, value: Tensor) -> Tensor:
        return value.float() - 1.0


@dataclass(frozen=True)
class Reordered(Stored):
    """Rows in another order: row i here is row order[i] of the file."""

    order: tuple[int, ...] = ()

    def convert(self, value: Tensor) -> Tensor:
        return value[list(self.order)]

    def restore(self, value: Tensor) -> Tensor:
        out = empty_like(value)
        out[list(self.order)] = value
        return out


@dataclass(frozen=True)
class Scaled(Stored):
    """Weights times a number."""

    factor: float = 1.0

    def convert(self, value: Tensor) -> Tensor:
        return value.float() * self.factor

    def restore(self, value: Tensor) -> Tensor:
        return value.float() / self.factor


@dataclass(frozen=True)
class ByExpert(Stored):
    """One tensor per expert, whose rows come one expert above another: `{expert}` in its name is the number."""


@dataclass(frozen=True)
class Stack(Stored):
    """One tensor [E, rows, K] for all experts, or [E, K, rows] where it is `turned`.

    halves: each expert's rows are gates and features, one half above the other, or `alternating`. Here all experts'
    gates come above all experts' features. Biases have no last dimension. experts: E, filled in by `tensors_at`.
    """

    turned: bool = False
    halves: bool = False
    alternating: bool = False
    experts: int = 0

    def file_shape(self, shape: Shape) -> Shape:
        rows, *width = shape
        inner = (rows // self.experts, *width)
        return self.experts, *(inner[::-1] if self.turned else inner)

    def convert(self, value: Tensor) -> Tensor:
        value = value.transpose(1, 2) if self.turned and value.dim() == 3 else value  # [E, rows, K] or [E, rows]
        if self.halves and self.alternating:
            value = value.unflatten(1, (-1, 2)).movedim(2, 0).flatten(0, 1)
        elif self.halves:
            value = value.unflatten(1, (2, -1)).movedim(1, 0).flatten(0, 1)
        return value.flatten(0, 1)

    def order(self, rows: int) -> Tensor:
        """Which row of the file, all experts' one above another, is each row here: int64 [rows]."""
        return self.convert(arange(rows).view(self.experts, -1))

    def restore(self, value: Tensor) -> Tensor:
        if self.halves:
            value = value.unflatten(0, (2, self.experts, -1))
            value = value.movedim(0, 2 if self.alternating else 1).flatten(1, 2)
        else:
            value = value.unflatten(0, (self.experts, -1))
        return value.transpose(1, 2) if self.turned and value.dim() == 3 else value


@dataclass(frozen=True)
class Either(Stored):
    """A tensor of the dense MLP, which has another name, `shared`, in layers where it is next to experts."""

    shared: str = ""


Source = str | tuple[str | Stored, ...] | Stored


def tensors_of(source: Source) -> tuple[Stored, ...]:
    """The tensors of a table's entry, in the order of their rows."""
    sources = source if isinstance(source, tuple) else (source,)
    return tuple(Stored(each) if isinstance(each, str) else each for each in sources)


def tensors_at(table: Mapping[str, Source], path: str, layer: int | None, config: ModelConfig) -> tuple[Stored, ...]:
    """The tensors of a table's entry for one layer, by their names in the files, in the order of their rows.

    A layer that attends to the keys and values of another has queries alone; one whose values are its keys has these
    twice.
    """
    found = tensors_of(table[path])
    if layer is None:
        return found
    if path.startswith("layers.{}.qkv.") and len(found) == 3:
        q, k, v = found
        v = k if config.has_values_from_keys(layer) else v
        found = (q, k, v) if config.stores_kv(layer) else (q,)
    experts = config.experts_at(layer)
    found = tuple(_named(stored, experts is not None) for stored in found)
    if experts is not None:
        found = tuple(each for stored in found for each in _of_experts(stored, experts.own))
    return tuple(replace(stored, name=stored.name.replace("{}", str(layer))) for stored in found)


def _named(stored: Stored, beside: bool) -> Stored:
    """A tensor by the name that it has in layers with experts, or in those without."""
    return Stored(stored.shared if beside else stored.name) if isinstance(stored, Either) else stored


def _of_experts(stored: Stored, own: range) -> Iterator[Stored]:
    if isinstance(stored, ByExpert):
        yield from (replace(stored, name=stored.name.replace("{expert}", str(number))) for number in own)
    else:
        yield replace(stored, experts=len(own)) if isinstance(stored, Stack) else stored


TEXT_PART = (  # names of the text part in checkpoints that also hold a vision tower, of transformers 5 and 4
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


@dataclass(frozen=True)
class Ignored:
    """Tensors that no model needs. pattern: matches their names.

    meaning, holds: the values that the configuration implies, in words and as a check. Other values belong to another
    model than the one that would be computed, so they are refused.
    """

    pattern: str
    meaning: str = ""
    holds: Callable[[ModelConfig, Tensor], bool] | None = None


VISION = Ignored(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
