"""Counts below torch: every operation passes here, whichever file asks for it.

    with Meter(model) as meter:
        engine.step()
    meter.rows        # rows that the layers have computed
    meter.live        # bytes of the tensors that are alive and were made while it watched

A row is counted by its multiplications: all products with matrices, divided by those that the layers do for one row. A
row that runs through half of the layers is half a row, and splitting a product into parts changes nothing. The output
head and attention are not counted.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradus.models import Linear, Model

PRODUCTS = {"aten::linear": (0, 1, -2), "aten::mm": (0, 1, -1), "aten::matmul": (0, 1, -1), "aten::addmm": (1, 2, -1)}
"""Operations that multiply rows by a matrix: the places of both, and the matrix's dimension that counts outputs."""


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
        self.storage = storage
        self.multiplied = 0
        self.live = self.peak = 0
        self.known: dict[int, int] = {}

    @property
    def rows(self) -> float:
        return self.multiplied / self.per_row

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer without asking torch, which would import its compiler for that and take a second."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        if found := PRODUCTS.get(operation._schema.name):
            self.count(args[found[0]], args[found[1]], found[2])
        if self.storage:
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self.watch(tensor)
        return out

    def count(self, rows: Tensor, matrix: Tensor, outputs: int) -> None:
        if matrix.dim() == 2 and matrix.shape[outputs] != self.vocabulary:
            self.multiplied += rows.numel() * matrix.shape[outputs]

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
