"""Gluon, Triton's lower level, for the interpreter, which does not know it: layouts say where values lie, not which."""

from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.experimental.gluon._runtime import GluonJITFunction


class Memory:
    """Shared memory."""

    def __init__(self, dtype: Any, shape: Any, layout: None) -> None:
        self.shape = shape

    def store(self, value: Any) -> None:
        assert [*value.shape] == [*self.shape]
        self.value = value

    def load(self, layout: None) -> Any:
        return self.value


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


def interpret(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """From now on, that module's kernels are interpreted. Of its layouts nothing is tested."""
    for name, value in vars(module).copy().items():
        if isinstance(value, GluonJITFunction):
            patch.setattr(module, name, triton.jit(value.fn))
        elif isinstance(value, triton.runtime.jit.ConstexprFunction):
            patch.setattr(module, name, lambda *_: None)
    patch.setattr(module, "gl", PlainTriton())
    patch.setattr(module, "mma_v2", lambda a, b, sums: tl.dot(a, b, sums))
