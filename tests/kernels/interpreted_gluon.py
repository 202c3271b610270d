"""Gluon, Triton's lower level, for the interpreter, which does not know it: layouts say where values lie, not which."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

UNWRITTEN = np.nan


class Memory:
    """Shared memory. An index into it, and it in another shape, are views of it."""

    def __init__(self, dtype: Any, shape: Any, layout: None, values: np.ndarray | None = None) -> None:
        self.dtype, self.shape = dtype, [int(getattr(size, "value", size)) for size in shape]
        kind = tl.core._unwrap_if_constexpr(dtype)
        self.values = np.full(self.shape, UNWRITTEN, _get_np_dtype(kind)) if values is None else values

    def store(self, value: Any) -> None:
        assert [*value.shape] == self.shape
        self.values[...] = value.handle.data

    def load(self, layout: None) -> Any:
        return tl.core.tensor(TensorHandle(self.values.copy(), self.kind), tl.block_type(self.kind, self.shape))

    @property
    def kind(self) -> Any:
        return tl.core._unwrap_if_constexpr(self.dtype)

    def index(self, at: Any) -> "Memory":
        return Memory(self.dtype, self.shape[1:], None, self.values[number(at)])

    def permute(self, order: Any) -> "Memory":
        values = self.values.transpose([number(dim) for dim in order])
        return Memory(self.dtype, values.shape, None, values)

    def _reinterpret(self, dtype: Any, shape: Any, layout: None) -> "Memory":
        return Memory(dtype, shape, None, self.values.reshape([number(size) for size in shape]))


class Copies:
    """In the place of `async_copy`: what is copied is there when its group has been waited for, and not before.

    copied: how many elements were asked for.
    """

    def __init__(self) -> None:
        self.copied = 0
        self.asked: list[tuple[Memory, Any]] = []
        self.groups: list[list[tuple[Memory, Any]]] = []

    def async_copy_global_to_shared(self, memory: Memory, pointer: Any, mask: Any) -> None:
        memory.values[...] = UNWRITTEN
        mask = tl.broadcast_to(mask, pointer.shape)
        self.copied += int(mask.handle.data.sum())
        self.asked.append((memory, tl.load(pointer, mask=mask, other=0.0)))

    def commit_group(self) -> None:
        self.groups.append(self.asked)
        self.asked = []

    def wait_group(self, outstanding: Any) -> None:
        while len(self.groups) > number(outstanding):
            for memory, value in self.groups.pop(0):
                memory.store(value)


def number(value: Any) -> int:
    return int(value.handle.data.item() if hasattr(value, "handle") else getattr(value, "value", value))


class PlainTriton:
    """In the place of `gluon.language`."""

    allocate_shared_memory = Memory

    def __getattr__(self, name: str) -> Any:
        """Looked up at each use: the interpreter puts its own functions into Triton while a kernel runs."""
        return getattr(tl, name)

    def arange(self, start: int, end: int, layout: None) -> Any:
        return tl.arange(start, end)

    def full(self, shape: list[int], value: float, dtype: Any, layout: None) -> Any:
        return tl.full(shape, value, dtype)

    def zeros_like(self, value: Any, dtype: Any) -> Any:
        return tl.zeros(value.shape, dtype)

    def convert_layout(self, value: Any, layout: None) -> Any:
        return value

    def static_range(self, count: Any) -> range:
        return range(int(getattr(count, "value", count)))

    def SliceLayout(self, dim: int, parent: None) -> None:
        return None


def added_up(a: Any, b: Any, sums: Any) -> Any:
    """sums + a b, a column of `a` after the other: a library's order depends on shapes, and on the processor.

    Shapes [matrices, M, K], [matrices, K, N] and [matrices, M, N].
    """
    left, right = (side.handle.data.astype(np.float32) for side in (a, b))
    total = sums.handle.data
    for column in range(left.shape[2]):
        total = total + left[:, :, column, None] * right[:, None, column]
    return tl.core.tensor(TensorHandle(total, tl.float32), sums.type)


def interpret(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """From now on, that module's kernels are interpreted, with what they call of other modules'. Of layouts nothing is
    tested.
    """
    gluon = [value for value in vars(module).values() if isinstance(value, GluonJITFunction)]
    homes = {function.fn.__module__: function.fn.__globals__ for function in gluon} | {module.__name__: vars(module)}
    for names in homes.values():
        for name, value in names.copy().items():
            if isinstance(value, GluonJITFunction):
                patch.setitem(names, name, triton.jit(value.fn))
            elif isinstance(value, triton.runtime.jit.ConstexprFunction):
                patch.setitem(names, name, lambda *_: None)
        patch.setitem(names, "tl", tl)  # the interpreter wants to see it, from functions that kernels call
        patch.setitem(names, "gl", PlainTriton())
        patch.setitem(names, "mma_v2", added_up)
        patch.setitem(names, "async_copy", Copies())
