"""Counts below torch: every operation passes here, whichever file asks for it.

    with Meter(model) as meter:
        engine.step()
    meter.rows        # rows that the layers have computed
    meter.live        # bytes of the tensors that are alive and were made while it watched

A row is counted by its multiplications: all products with matrices, divided by those that the layers do for one row. A
row that runs through half of the layers is half a row, and splitting a product into parts changes nothing. The output
head and attention are not counted.

Once floating-point numbers are in a numpy array or a list, nothing counts them. A reader's code that takes them out of
torch is refused.
"""

import sys
import weakref
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradus.course.open.declaration import Refused
from gradus.models import Linear, Model

PRODUCTS = {"aten::linear": (0, 1, -2), "aten::mm": (0, 1, -1), "aten::matmul": (0, 1, -1), "aten::addmm": (1, 2, -1)}
"""Operations that multiply rows by a matrix: the places of both, and the matrix's dimension that counts outputs."""

OTHERS = {
    f"aten::{name}" for name in ("matmul", "mv", "bmm", "baddbmm", "einsum", "inner", "tensordot", "linalg_vecdot")
}
"""Operations that are counted if they read a layer's matrix, and are attention or a reader's own otherwise."""


class Meter(TorchDispatchMode):
    """Watches operations while it is entered. It can be entered many times, and goes on counting.

    storage: also count bytes. live: of the tensors that were made while it watched and are alive. peak: the most at
    once. What one operation uses inside, and gives back before it ends, is not seen.
    """

    def __init__(self, model: Model, *, storage: bool = False) -> None:
        super().__init__()
        self.vocabulary = model.config.vocab_size
        matrices = [part for part in model.layers.modules() if isinstance(part, Linear)]
        self.per_row = sum(part.in_features * sum(part.out_features) for part in matrices)
        self.sizes = {value.untyped_storage()._cdata: value.numel() for part in matrices for value in part.parameters()}
        self.exits = Exits()
        self.storage = storage
        self.multiplied = 0
        self.live = self.peak = 0
        self.known: dict[int, int] = {}

    @property
    def rows(self) -> float:
        return self.multiplied / self.per_row

    def __enter__(self) -> "Meter":
        self.exits.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.exits.__exit__(*raised)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer without asking torch, which would import its compiler for that and take a second."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        name = operation._schema.name
        if (found := PRODUCTS.get(name)) and args[found[1]].dim() == 2:
            self.count(args[found[0]], args[found[1]], found[2])
        elif name in OTHERS or name == "aten::mul":
            self.count_other(tree_leaves(args), out, elementwise=name == "aten::mul")
        if self.storage:
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self.watch(tensor)
        return out

    def count(self, rows: Tensor, matrix: Tensor, outputs: int) -> None:
        if matrix.shape[outputs] != self.vocabulary:
            self.multiplied += rows.numel() * matrix.shape[outputs]

    def count_other(self, args: Sequence[Any], out: Tensor, *, elementwise: bool) -> None:
        """Count an operation of OTHERS, or a product of single numbers, if one of its operands is a layer's matrix.

        [n, i] by [o, i] to [n, o] takes n · i · o multiplications: the root of the product of the three sizes, in
        whatever order the dimensions are. A matrix that is repeated along a new dimension is as large as before.
        """
        tensors = [each for each in args if isinstance(each, Tensor)]
        sizes = [self.sizes.get(each.untyped_storage()._cdata, 0) for each in tensors]
        if any(sizes):
            operands = (min(each.numel(), size or each.numel()) for each, size in zip(tensors, sizes, strict=True))
            self.multiplied += out.numel() if elementwise else round(prod([*operands, out.numel()]) ** 0.5)

    def watch(self, tensor: Tensor) -> None:
        """Count a storage from its first tensor until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        grown = size - self.known.get(key, 0)
        if key not in self.known:
            weakref.finalize(storage, self.forget, key)
        self.known[key] = size
        self.live += grown
        self.peak = max(self.peak, self.live)

    def forget(self, key: int) -> None:
        self.live -= self.known.pop(key)


class Exits(TorchFunctionMode):
    """Refuses floating-point tensors that a reader's code turns into numpy arrays or lists. The engine's may do so."""

    NAMES = ("numpy", "__array__", "tolist")

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in self.NAMES and args[0].is_floating_point() and not ours(caller := outside_of_torch()):
            raise Refused(
                f"line {caller.f_lineno} of {Path(caller.f_code.co_filename).name} takes numbers out of torch "
                f"({name}), where rows and bytes are not counted: compute with tensors"
            )
        return function(*args, **(kwargs or {}))


def outside_of_torch() -> FrameType:
    """Return the frame whose call into torch came here."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    return frame


def ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("gradus", "phases")
