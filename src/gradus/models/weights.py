"""Copy a checkpoint's tensors into a model, once all of them have been checked.

Nothing is written before every name and shape has been checked. A few threads each read one module's tensors, so
loading needs little more memory than the model itself. Each model file says which tensor belongs where (source.py).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor, nn

from gradus.device.threads import own_threads, use
from gradus.errors import CheckpointError
from gradus.models.config import ModelConfig
from gradus.models.layers import EMBEDDING, FLOATS, Linear, Model
from gradus.models.source import ByExpert, Reordered, Shape, Source, Stack, Stored, tensors_at

MOST_READERS = 8  # threads: each holds a tensor in memory, and memory's rate is shared


class Prepared(Protocol):
    """A matrix that is not made of floats: it can write itself into a module that keeps such matrices."""

    @property
    def nbytes(self) -> int: ...

    def reordered(self, order: Sequence[int] | Tensor) -> "Prepared":
        """The matrix whose row i is row order[i] of this one. Raises ValueError if that cannot be."""

    def into(self, module: nn.Module, start: int) -> None:
        """Write it from a row of the module on. Raises ValueError if it does not fit there."""


class TensorSource(Protocol):
    """A checkpoint's tensors by name, whatever the files."""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> Shape: ...

    def read(self, name: str) -> Tensor | Prepared:
        """The tensor on the CPU, in the type it is stored in; or a quantized matrix."""

    def where(self, name: str) -> str:
        """The file that holds it, for messages."""


def layout_of(source: TensorSource) -> Mapping[str, Source]:
    """Entries of the model's table that these files cut in another way, if the source has a `layout`: llama.cpp's
    stacks of experts."""
    found: Mapping[str, Source] = getattr(source, "layout", {})
    return found


@dataclass(frozen=True)
class Piece:
    """One tensor of the checkpoint and its place here: rows start, start + 1, … of a module's parameter."""

    stored: Stored
    module: nn.Module
    parameter: str
    start: int
    shape: Shape


@dataclass(frozen=True)
class CheckedSource:
    """A checkpoint's tensors under the names of the model's table: complete, and in the right shapes.

    spelling: canonical name → the name in the files.
    """

    source: TensorSource
    spelling: dict[str, str]

    def names(self) -> Iterable[str]:
        return self.spelling

    def shape(self, name: str) -> Shape:
        return self.source.shape(self.spelling[name])

    def read(self, name: str) -> Tensor | Prepared:
        return self.source.read(self.spelling[name])

    def where(self, name: str) -> str:
        return self.source.where(self.spelling[name])

    @property
    def layout(self) -> Mapping[str, Source]:
        return layout_of(self.source)


def checked(model: Model, source: TensorSource) -> CheckedSource:
    """Raises CheckpointError when a tensor is missing, unknown, or of another shape than the configuration says, and
    when an ignored tensor's values contradict the configuration."""
    pieces, spelling = plan(model, layout_of(source)), _spellings(model, source)
    _check_ignored(model, source)
    _check_names(model, pieces, spelling, source)
    _check_shapes(pieces, spelling, source)
    return CheckedSource(source, spelling)


def load_weights(model: Model, source: TensorSource, *, on_tensor: Callable[[str, int], None] | None = None) -> None:
    """Fill every weight of `model` from `source`.

    on_tensor(name, bytes) is called for each tensor that was copied, to show progress. Several threads read `source`:
    each unpacks, checks and converts its own tensors.

    Raises CheckpointError before anything is written when a tensor is missing, unknown, or of another shape than the
    configuration says; and while copying when one holds values that are not finite. The model is then unusable.
    """
    spelling = checked(model, source).spelling
    # one thread takes all pieces of a module, because how it stores one may depend on another
    by_module = groupby(plan(model, layout_of(source)), lambda piece: id(piece.module))
    modules = [list(pieces) for _, pieces in by_module]
    pool = ThreadPoolExecutor(min(MOST_READERS, use(None)), "gradus-load")
    inference = torch.is_inference_mode_enabled()  # each thread has its own
    try:
        for copied in pool.map(lambda pieces: _copy(pieces, spelling, source, inference), modules):
            for name, size in copied:
                if on_tensor is not None:
                    on_tensor(name, size)
    finally:
        pool.shutdown(cancel_futures=True)


def _copy(
    pieces: list[Piece], spelling: dict[str, str], source: TensorSource, inference: bool
) -> list[tuple[str, int]]:
    """Fill a module, in the calling thread alone. Returns name and bytes of each tensor."""
    copied = []
    with torch.inference_mode(inference), torch.no_grad(), own_threads(1):
        for piece in pieces:
            name = spelling[piece.stored.name]
            value = source.read(name)
            if isinstance(value, Tensor):
                _check_values(value, piece, f"{source.where(name)}: tensor {name!r}")
                assign(piece.module, piece.parameter, piece.start, piece.stored.convert(value))
            else:
                _store(value, piece, f"{source.where(name)}: tensor {name!r}")
            copied.append((name, value.nbytes))
    return copied


def _store(value: Prepared, piece: Piece, what: str) -> None:
    """Fill rows with a matrix that is not made of floats."""
    stored = piece.stored
    try:
        if isinstance(stored, Reordered):
            value = value.reordered(stored.order)
        elif isinstance(stored, Stack):
            value = value.reordered(stored.order(piece.shape[0])) if stored.halves else value
        elif type(stored) not in (Stored, ByExpert):
            raise ValueError(f"is quantized in another form than the model's ({type(stored).__name__.lower()})")
        value.into(piece.module, piece.start)
    except ValueError as error:
        raise CheckpointError(f"{what} {error}: not supported") from error


def parameters(model: Model) -> Iterator[tuple[str, nn.Module, str, Shape]]:
    """Yield (full name, module, name there, shape) of every weight; a tied head is the embedding, and not repeated.

    A Linear's shape is that of its product, not of its storage, which may be packed beyond recognition.
    """
    seen: set[int] = set()
    for path, module in _parts(model):
        if isinstance(module, Linear):
            rows = sum(module.out_features)
            shapes: dict[str, Shape] = {"weight": (rows, module.in_features)}
            shapes |= {"bias": (rows,)} if module.has_bias else {}
        else:
            shapes = {name: tuple(value.shape) for name, value in module.named_parameters(recurse=False)}
        for name, shape in shapes.items():
            stored = getattr(module, name, None)
            if not isinstance(stored, nn.Parameter) or id(stored) not in seen:
                yield f"{path}.{name}", module, name, shape
            seen |= {id(stored)} if isinstance(stored, nn.Parameter) else set()


def _parts(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules with their paths, except those inside a Linear."""
    inside: str | None = None
    for path, module in model.named_modules():
        if inside is None or not path.startswith(inside):
            inside = f"{path}." if isinstance(module, Linear) else None
            yield path, module


def assign(module: nn.Module, name: str, start: int, value: Tensor) -> None:
    """Copy rows into a parameter, converting type and device; a Linear decides itself how it keeps them."""
    if isinstance(module, Linear):
        module.assign(name, start, value)
    else:
        module.get_parameter(name)[start : start + value.shape[0]].copy_(value)


def plan(model: Model, layout: Mapping[str, Source] | None = None) -> list[Piece]:
    """List every tensor that the model needs, under its canonical name, with its place. layout: see `layout_of`."""
    pieces, table = [], {**model.weights, **(layout or {})}
    for path, module, name, shape in parameters(model):
        if path == "head.weight" and model.config.tie_embeddings:  # tied, but stored twice: the same tensor again
            path = EMBEDDING
        path = path.replace("embedding.table.", "embedding.")  # a matrix of its own, for a table in fewer bits
        found = re.search(r"\.(\d+)\.", path)
        layer = int(found[1]) if found else None
        path = path if layer is None else path.replace(f".{layer}.", ".{}.")
        tensors = tensors_at(table, path, layer, model.config)
        for stored, start, rows in _rows(tensors, module, shape[0]):
            pieces.append(Piece(stored, module, name, start, (rows, *shape[1:])))
    return pieces


def _rows(tensors: tuple[Stored, ...], module: nn.Module, rows: int) -> Iterator[tuple[Stored, int, int]]:
    """Yield the tensors of one table entry, each with its first row and its number of rows.

    Experts' tensors are several to a part of the matrix, and equal ones.
    """
    start = 0
    if len(tensors) > 1:
        assert isinstance(module, Linear)
        each = len(tensors) // len(module.out_features)
        widths = tuple(width // each for width in module.out_features for _ in range(each))
    else:
        widths = (rows,)
    for stored, width in zip(tensors, widths, strict=True):
        yield stored, start, width
        start += width


def canonical_name(family: type[Model], name: str) -> str:
    """A tensor's name in the family's table, from a checkpoint whose names may begin differently."""
    for prefix, replacement in family.renamed:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def of_other_parts(family: type[Model], source: TensorSource) -> list[str]:
    """List the tensors of a checkpoint's other parts (towers for images and sound), which compute no text."""
    patterns = [ignored.pattern for ignored in family.ignored if ignored.holds is None]
    names = ((name, canonical_name(family, name)) for name in source.names())
    return [name for name, canonical in names if any(re.search(pattern, canonical) for pattern in patterns)]


def tied_as_stored(config: ModelConfig, family: type[Model], source: TensorSource) -> ModelConfig:
    """The configuration, with a separate output head if the files have one that differs from the embedding.

    A configuration may still call it tied, for example after both were trained separately; `transformers` then keeps
    the head. Reads both tensors if both exist.
    """
    if not config.tie_embeddings:
        return config
    names = {canonical_name(family, name): name for name in source.names()}
    head, table = (names.get(str(family.weights[f"{part}.weight"])) for part in ("head", "embedding"))
    if head is None or table is None or _same(source.read(head), source.read(table)):
        return config
    return replace(config, tie_embeddings=False)


def _same(one: Tensor | Prepared, other: Tensor | Prepared) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return torch.equal(one, other) if one.dtype == other.dtype else torch.equal(one.float(), other.float())


def _spellings(model: Model, source: TensorSource) -> dict[str, str]:
    """Map canonical names to the names in this checkpoint, without the tensors that no model needs."""
    spelling: dict[str, str] = {}
    for name in source.names():
        canonical = canonical_name(type(model), name)
        if any(re.search(ignored.pattern, canonical) for ignored in model.ignored):
            continue
        if canonical == model.weights["head.weight"] and model.config.tie_embeddings:
            continue  # a copy of the embedding: see tied_as_stored
        if canonical in spelling:
            raise CheckpointError(f"{source.where(name)}: {spelling[canonical]!r} and {name!r} are the same tensor")
        spelling[canonical] = name
    return spelling


def _check_ignored(model: Model, source: TensorSource) -> None:
    for name in source.names():
        for ignored in model.ignored:
            if ignored.holds is None or not re.search(ignored.pattern, canonical_name(type(model), name)):
                continue
            value = source.read(name)
            if not (isinstance(value, Tensor) and ignored.holds(model.config, value)):
                raise CheckpointError(
                    f"{source.where(name)}: tensor {name!r} is not {ignored.meaning}: it contradicts the configuration"
                )


def _check_names(model: Model, pieces: list[Piece], spelling: dict[str, str], source: TensorSource) -> None:
    wanted = {piece.stored.name for piece in pieces}
    missing = [name for name in dict.fromkeys(piece.stored.name for piece in pieces) if name not in spelling]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks tensor {missing[0]!r}{_and_more(missing)}, which the configuration calls for"
        )
    unknown = [name for canonical, name in spelling.items() if canonical not in wanted]
    if unknown:
        raise CheckpointError(
            f"{source.where(unknown[0])}: tensor {unknown[0]!r}{_and_more(unknown)} has no place in a "
            f"{model.config.family} model of this configuration"
        )


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _check_shapes(pieces: list[Piece], spelling: dict[str, str], source: TensorSource) -> None:
    for piece in pieces:
        name = spelling[piece.stored.name]
        found, wanted = tuple(source.shape(name)), piece.stored.file_shape(piece.shape)
        if found != wanted:
            raise CheckpointError(
                f"{source.where(name)}: tensor {name!r} has shape {found}, the configuration needs {wanted}"
            )


def _check_values(value: Tensor, piece: Piece, what: str) -> None:
    """Refuse types that the module does not accept, NaN, and values that are infinite in the file or once narrowed."""
    accepted = piece.module.accepted if isinstance(piece.module, Linear) else FLOATS
    if value.dtype not in accepted:
        raise CheckpointError(f"{what} holds {value.dtype}, expected {_spelled(accepted)}")
    wanted = piece.stored.file_shape(piece.shape)
    if tuple(value.shape) != wanted:  # the header said otherwise
        raise CheckpointError(f"{what} holds shape {tuple(value.shape)}, the configuration needs {wanted}")
    if value.dtype not in FLOATS:  # integers are finite, and only the module knows the meaning of narrower floats
        return
    kept = getattr(piece.module, piece.parameter, None)
    kept_dtype = kept.dtype if isinstance(kept, Tensor) and kept.is_floating_point() else value.dtype
    largest = min(torch.finfo(value.dtype).max, torch.finfo(kept_dtype).max)
    low, high = (bound.item() for bound in torch.aminmax(value))  # one pass, no mask in memory; NaN comes through
    if not (-largest <= low and high <= largest):
        raise CheckpointError(f"{what} holds NaN, infinity, or values beyond {kept_dtype}: {low:g} to {high:g}")


def _spelled(dtypes: frozenset[torch.dtype]) -> str:
    if dtypes == FLOATS:
        return "floating-point weights of 16, 32 or 64 bits"
    return " or ".join(sorted(str(dtype) for dtype in dtypes))
