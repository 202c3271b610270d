"""Gluon, Triton's lower level, for the interpreter, which does not know it: layouts say where values lie, not which.

Only the layout of shared memory has a part in this, because memory may be taken in another shape: see `Memory`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, _get_np_dtype
from triton.runtime.jit import ConstexprFunction

NAN_BITS = 0x7FC0  # of bfloat16, which the interpreter keeps as integers
COLUMN = 128  # bytes that the copy engine and the matrix units take of each row


class Memory:
    """Shared memory. An index into it, and it in another order or another shape, are views of it.

    values: in the order of their bytes. Swizzled rows longer than COLUMN bytes lie in columns: the first COLUMN bytes
    of all rows, then the next ones of all rows. order: permutes the stored dimensions to those that are seen.
    """

    def __init__(
        self, dtype: Any, shape: Any, layout: Any, values: np.ndarray | None = None, order: Any = None
    ) -> None:
        self.dtype, self.layout, self.order = dtype, layout, order
        self.stored_shape = [number(size) for size in shape]
        self.shape = [self.stored_shape[dim] for dim in order] if order else self.stored_shape
        if values is None:
            self.values = np.empty(self._lying(), _get_np_dtype(self.kind))
            self.forget()
        else:
            self.values = values

    @property
    def kind(self) -> Any:
        return tl.core._unwrap_if_constexpr(self.dtype)

    def _lying(self) -> list[int]:
        """The shape of `values`."""
        *outer, rows, width = [1, *self.stored_shape]
        column = COLUMN * 8 // self.kind.primitive_bitwidth
        if isinstance(self.layout, gl.NVMMASharedLayout) and width > column:
            assert self.layout.swizzle_byte_width == COLUMN and width % column == 0
            return [*outer[1:], width // column, rows, column]
        return self.stored_shape

    def forget(self) -> None:
        """Put into all of it what no result may have."""
        if self.kind.is_int():
            self.values[...] = np.iinfo(self.values.dtype).min
        else:
            self.values[...] = NAN_BITS if self.kind == tl.bfloat16 else np.nan

    def store(self, value: Any) -> None:
        assert not self.order and [*value.shape] == self.shape and value.dtype == self.kind
        columns = value.handle.data
        if len(self._lying()) > len(self.shape):
            columns = columns.reshape([*self.shape[:-1], self._lying()[-3], -1]).swapaxes(-3, -2)
        self.values[...] = columns

    def load(self, layout: None) -> Any:
        values = self.values
        if len(self._lying()) > len(self.shape):
            values = values.swapaxes(-3, -2)
        values = values.reshape(self.stored_shape).transpose(self.order or range(len(self.shape)))
        return tl.core.tensor(TensorHandle(values.copy(), self.kind), tl.block_type(self.kind, self.shape))

    def index(self, at: Any) -> "Memory":
        assert not self.order
        return Memory(self.dtype, self.shape[1:], self.layout, self.values[number(at)])

    def permute(self, order: Any) -> "Memory":
        return Memory(self.dtype, self.shape, self.layout, self.values, [number(dim) for dim in order])

    def _reinterpret(self, dtype: Any, shape: Any, layout: Any) -> "Memory":
        other = Memory(dtype, shape, layout)
        other.values = self.values.reshape(other.values.shape)
        assert np.shares_memory(other.values, self.values)
        return other


class Copies:
    """In the place of `async_copy`: what is copied is there when its group has been waited for, and not before.

    copied: how many elements were asked for.
    """

    def __init__(self) -> None:
        self.copied = 0
        self.asked: list[tuple[Memory, Any]] = []
        self.groups: list[list[tuple[Memory, Any]]] = []

    def async_copy_global_to_shared(self, memory: Memory, pointer: Any, mask: Any) -> None:
        memory.forget()
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
    NVMMASharedLayout = gl.NVMMASharedLayout

    def __getattr__(self, name: str) -> Any:
        """Looked up at each use: the interpreter puts its own functions into Triton while a kernel runs."""
        return getattr(tl, name)

    def arange(self, start: int, end: int, layout: None) -> Any:
        return tl.arange(start, end)

    def full(self, shape: list[int], value: float, dtype: Any, layout: None) -> Any:
        return tl.full(shape, value, tl.float32).to(dtype) if dtype == tl.bfloat16 else tl.full(shape, value, dtype)

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
    left, right = (side.to(tl.float32).handle.data for side in (a, b))
    total = sums.handle.data
    for column in range(left.shape[2]):
        total = total + left[:, :, column, None] * right[:, None, column]
    return tl.core.tensor(TensorHandle(total, tl.float32), sums.type)


def rounded_to_nearest(convert: Callable) -> Callable:
    """Convert between float32 and bfloat16 as GPUs do, where the interpreter cuts bits off; the rest as before."""

    def converted(self, source: TensorHandle, kind: Any) -> TensorHandle:
        pair = source.dtype.scalar, kind.scalar
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle((source.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            bits = source.data.view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return TensorHandle(np.where(np.isnan(source.data), NAN_BITS, nearest).astype(np.uint16), tl.bfloat16)
        return convert(self, source, kind)

    return converted


def interpret(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Interpret that module's kernels from now on, and the functions of other modules that they call. Layouts of
    registers are not tested.
    """
    gluon = [value for value in vars(module).values() if isinstance(value, GluonJITFunction)]
    homes = {function.fn.__module__: function.fn.__globals__ for function in gluon} | {module.__name__: vars(module)}
    for names in homes.values():
        for name, value in names.copy().items():
            if isinstance(value, GluonJITFunction):
                patch.setitem(names, name, triton.jit(value.fn))
            elif isinstance(value, ConstexprFunction) and value.fn.__annotations__["return"] != gl.NVMMASharedLayout:
                patch.setitem(names, name, lambda *_: None)
        patch.setitem(names, "tl", tl)  # the interpreter wants to see it, from functions that kernels call
        patch.setitem(names, "gl", PlainTriton())
        patch.setitem(names, "mma_v2", added_up)
        patch.setitem(names, "async_copy", Copies())
    convert = interpreter.InterpreterBuilder.cast_impl
    patch.setattr(interpreter.InterpreterBuilder, "cast_impl", rounded_to_nearest(convert))
