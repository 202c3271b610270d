"""Warp groups for the interpreter: each is a thread, barriers count, and the copy engine is as late as it may be.

They test which warp group waits for which, and which values meet. A product reads its operands when it is waited for,
so a tile that is given back too early has other values by then; and groups that wait for each other forever fail
instead of hanging.
"""

from collections.abc import Callable
from threading import Condition, Thread
from types import ModuleType
from typing import Any

import pytest
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.kernels import interpreted_gluon
from tests.kernels.interpreted_gluon import Memory, PlainTriton, added_up, number

PATIENCE = 60  # seconds that a group waits for another


class Phase:
    """A barrier: `count` arrivals and all bytes that were announced turn its phase."""

    def __init__(self, count: int) -> None:
        self.count, self.turned = count, 0
        self.left, self.bytes = count, 0

    def changed(self, arrivals: int, expected: int) -> None:
        self.left, self.bytes = self.left - arrivals, self.bytes + expected
        assert self.left >= 0, "more arrivals than the barrier counts"
        if not self.left and not self.bytes:
            self.turned, self.left = self.turned + 1, self.count


class Barriers:
    """Stands in for `mbarrier`, `tma` and `async_copy`."""

    def __init__(self, copiers: int) -> None:
        self.copiers, self.phases, self.news = copiers, dict[int, Phase](), Condition()
        self.lists: list[tuple[Memory, Any]] = []

    def of(self, memory: Memory) -> Phase:
        return self.phases[memory.values.__array_interface__["data"][0]]

    def change(self, memory: Memory, arrivals: int, expected: int) -> None:
        with self.news:
            self.of(memory).changed(arrivals, expected)
            self.news.notify_all()

    # mbarrier

    def MBarrierLayout(self) -> None:
        return None

    def init(self, memory: Memory, count: Any) -> None:
        self.phases[memory.values.__array_interface__["data"][0]] = Phase(number(count))

    def expect(self, memory: Memory, expected: Any) -> None:
        self.change(memory, 1, number(expected))

    def arrive(self, memory: Memory, pred: Any = True) -> None:
        if number(pred):
            self.change(memory, 1, 0)

    def wait(self, memory: Memory, parity: Any) -> None:
        """Until the phase of that parity has turned."""
        with self.news:
            phase, odd = self.of(memory), number(parity)
            assert self.news.wait_for(lambda: phase.turned % 2 != odd, PATIENCE), "nobody comes"

    # tma, async_copy

    def async_copy_global_to_shared(self, *operands: Any) -> None:
        if isinstance(operands[0], Memory):  # by threads: memory, pointers
            memory, pointers = operands
            memory.values[...] = interpreted_gluon.UNWRITTEN
            self.lists.append((memory, interpreted_gluon.tl.load(pointers)))
        else:
            described, place, barrier, memory = operands
            memory.store(described.load(place))
            self.change(barrier, 0, -memory.values.nbytes)

    def mbarrier_arrive(self, memory: Memory, increment_count: bool) -> None:
        assert not increment_count
        for written, values in self.lists:
            written.store(values)
        self.lists.clear()
        self.change(memory, self.copiers, 0)


class Product:
    """Sums whose last products are under way."""

    def __init__(self, sums: Any, under_way: list[tuple[Memory, Memory]]) -> None:
        self.sums, self.under_way = sums, under_way


def warpgroup_mma(a: Memory, b: Memory, sums: Any, *, is_async: bool) -> Product:
    before = sums if isinstance(sums, Product) else Product(sums, [])
    return Product(before.sums, [*before.under_way, (a, b)])


def warpgroup_mma_wait(outstanding: int, deps: list[Product]) -> Any:
    """Products are issued in turn, so several sums share the number that may be under way."""
    found = [waited(product, outstanding // len(deps)) for product in deps]
    return found[0] if len(found) == 1 else tuple(found)


def waited(product: Product, outstanding: int) -> Any:
    sums, under_way = product.sums, list(product.under_way)
    while len(under_way) > outstanding:
        a, b = (side.load(None) for side in under_way.pop(0))
        sums = added_up(a[None, :, :], b[None, :, :], sums[None, :, :]).reshape(sums.shape)
    return Product(sums, under_way) if outstanding else sums


class Groups(PlainTriton):
    """Stands in for `gluon.language`."""

    def zeros(self, shape: list[int], dtype: Any, layout: None) -> Any:
        return interpreted_gluon.tl.zeros(shape, dtype)

    def convert_layout(self, value: Any, layout: None, assert_trivial: bool = False) -> Any:
        return value

    def warp_specialize(self, groups: list[tuple[Callable, tuple]], warps: list[int], registers: list[int]) -> None:
        failures: list[BaseException] = []

        def run(function: Callable, arguments: tuple) -> None:
            try:
                function(*arguments)
            except BaseException as problem:
                failures.append(problem)

        threads = [Thread(target=run, args=group, daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def interpret(module: ModuleType, patch: pytest.MonkeyPatch, copiers: int) -> None:
    """Interpret that module's kernels from now on. copiers: threads that copy lists of rows."""
    assert triton.runtime.interpreter
    interpreted_gluon.interpret(module, patch)
    barriers = Barriers(copiers)
    patch.setattr(module, "gl", Groups())
    for name in ("mbarrier", "tma", "async_copy"):
        patch.setattr(module, name, barriers, raising=False)
    patch.setattr(module, "warpgroup_mma", warpgroup_mma)
    patch.setattr(module, "warpgroup_mma_wait", warpgroup_mma_wait)
    patch.setattr(module, "fence_async_shared", lambda: None)
    patch.setattr(module, "described", described)


def described(matrix: Any, box: list[int]) -> TensorDescriptor:
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], box)
