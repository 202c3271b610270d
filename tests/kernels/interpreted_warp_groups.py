"""Warp groups for the interpreter: each is a thread, barriers count, and copies and products are as late as possible.

They test which warp group waits for which, and which values meet. A copy destroys what was in its place when it is
requested, and arrives when a group waits for it. A product reads its operands when it is waited for. So memory that is
given back too early, or read too early, has other values. Groups that wait for each other forever fail instead of
hanging.
"""

from collections.abc import Callable
from functools import partial
from threading import Condition, Thread, local
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import TensorHandle

from tests.kernels import interpreted_gluon
from tests.kernels.interpreted_gluon import COLUMN, Memory, PlainTriton, added_up, number

# -- the copy engine ---------------------------------------------------------------------------------------------------


class Described:
    """Stands in for a descriptor: boxes of a tensor, with zeros where they reach beyond it."""

    def __init__(self, base: Tensor, shape: list[int], strides: list[int], box: list[int], layout: Any = None) -> None:
        assert base.is_cpu and base.data_ptr() % 16 == 0 and strides[-1] == 1
        assert all(stride * base.itemsize % 16 == 0 for stride in strides[:-1])
        assert max(box) <= 256 and box[-1] * base.itemsize <= COLUMN and len(box) == len(shape) == len(strides)
        whole = base.as_strided(shape, strides)
        self.values = whole.view(torch.int16).numpy().view(np.uint16) if base.dtype == torch.bfloat16 else whole.numpy()
        self.dtype = tl.str_to_ty(triton.runtime.jit.mangle_type(base), None).element_ty
        self.box, self.layout = box, layout

    def load(self, place: list[Any]) -> Any:
        begins = [number(begin) for begin in place]
        sides = [*zip(begins, self.box, self.values.shape, strict=True)]
        inside = tuple(slice(max(begin, 0), max(begin + wide, 0)) for begin, wide, _ in sides)
        there = tuple(slice(max(0, -begin), max(0, min(wide, size - begin))) for begin, wide, size in sides)
        found = np.zeros(self.box, self.values.dtype)
        found[there] = self.values[inside]
        return tl.core.tensor(TensorHandle(found, self.dtype), tl.block_type(self.dtype, self.box))


def described(matrix: Tensor, box: list[int]) -> Described:
    return Described(matrix, [*matrix.shape], [*matrix.stride()], box)


# -- barriers ----------------------------------------------------------------------------------------------------------


class Phase:
    """A barrier: `count` arrivals and all bytes that were announced turn its phase.

    copies: on their way, each a function that writes it and counts its bytes or its arrivals. seen: by group, the turns
    up to its last wait.
    """

    def __init__(self, count: int) -> None:
        self.count, self.turned = count, 0
        self.left, self.bytes = count, 0
        self.copies: list[Callable[[], None]] = []
        self.seen = dict[int, int]()

    def change(self, arrivals: int, expected: int) -> None:
        self.left, self.bytes = self.left - arrivals, self.bytes + expected
        assert self.left >= 0, "more arrivals than the barrier counts"
        if not self.left and not self.bytes:
            self.turned, self.left = self.turned + 1, self.count

    def has_turned(self, odd: int) -> bool:
        """Whether the phase of that parity is over. Copies arrive until it is."""
        while self.turned % 2 == odd and self.copies:
            self.copies.pop(0)()
        return self.turned % 2 != odd


class Turns:
    """One group runs at a time, until it has to wait or has arrived at a barrier.

    A group that waited and can go on comes next; only if there is none, one that arrived. So everything that an arrival
    allows happens before the group that arrived does more, and every run takes the same order.
    """

    def __init__(self) -> None:
        self.changed, self.mine = Condition(), local()
        self.away: dict[int, Callable[[], bool] | None] = {}  # groups that do not run, and what they wait for
        self.running: int | None = None
        self.over = False

    def take_all(self, groups: list[Callable[[], None]]) -> None:
        """Run these groups to their end. The first failure ends all of them, and is raised here."""
        failures: list[BaseException] = []

        def run(number: int, group: Callable[[], None]) -> None:
            self.mine.number = number
            try:
                self._until_mine()
                group()
                self._pass_on()
            except BaseException as problem:
                failures.append(problem)
                with self.changed:
                    self.over = True
                    self.changed.notify_all()

        self.away, self.over = dict.fromkeys(range(len(groups))), False
        threads = [Thread(target=run, args=each, daemon=True) for each in enumerate(groups)]
        self._pass_on()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.running = None
        if failures:
            raise failures[0]

    def give_way(self, until: Callable[[], bool] | None = None) -> None:
        """Let other groups run until that holds. Before there are groups, this does nothing."""
        if self.running is None:
            return
        with self.changed:
            self.away[self.mine.number] = until
            self._pass_on()
        self._until_mine()

    def _until_mine(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.over or self.running == self.mine.number)
            assert not self.over, "groups wait for each other forever"

    def _pass_on(self) -> None:
        with self.changed:
            able = [group for group, until in self.away.items() if until and until()]
            able = able or [group for group, until in self.away.items() if not until]
            self.over = self.over or (bool(self.away) and not able)
            self.running = able[0] if able else -1
            self.away.pop(self.running, None)
            self.changed.notify_all()


class Barriers:
    """Stands in for `mbarrier`, `tma` and `async_copy`."""

    def __init__(self, copiers: int, turns: Turns) -> None:
        self.copiers, self.turns, self.phases = copiers, turns, dict[int, Phase]()
        self.lists: list[tuple[Memory, Any]] = []

    def of(self, memory: Memory) -> Phase:
        return self.phases[memory.values.__array_interface__["data"][0]]

    # mbarrier

    def MBarrierLayout(self) -> None:
        return None

    def init(self, memory: Memory, count: Any) -> None:
        self.phases[memory.values.__array_interface__["data"][0]] = Phase(number(count))

    def expect(self, memory: Memory, expected: Any) -> None:
        self.of(memory).change(1, number(expected))

    def arrive(self, memory: Memory, pred: Any = True) -> None:
        if number(pred):
            self.of(memory).change(1, 0)
            self.turns.give_way()

    def wait(self, memory: Memory, parity: Any) -> None:
        """Until the phase of that parity has turned.

        A barrier that turns again before a group has seen it is one whose memory may change while that group reads it.
        """
        phase, odd = self.of(memory), number(parity)
        if not phase.has_turned(odd):
            self.turns.give_way(lambda: phase.has_turned(odd))
        group = self.turns.mine.number
        before = phase.seen.get(group, phase.turned - 1)
        assert phase.turned == before + 1, "a barrier turned twice since a group waited"
        phase.seen[group] = phase.turned

    # tma, async_copy

    def async_copy_global_to_shared(self, *operands: Any) -> None:
        if isinstance(operands[0], Memory):  # by threads: memory, pointers
            memory, pointers = operands
            self.lists.append((memory, tl.load(pointers)))
            memory.forget()
        else:
            described, place, barrier, memory = operands
            assert isinstance(described, Described) and memory.layout == (described.layout or memory.layout)
            values = described.load(place)
            memory.forget()
            self.of(barrier).copies.append(lambda: self.arrived(barrier, [(memory, values)], 0, memory.values.nbytes))

    def mbarrier_arrive(self, memory: Memory, increment_count: bool) -> None:
        assert not increment_count
        lists, self.lists = self.lists, []
        self.of(memory).copies.append(lambda: self.arrived(memory, lists, self.copiers, 0))

    def arrived(self, barrier: Memory, copies: list[tuple[Memory, Any]], arrivals: int, read: int) -> None:
        for memory, values in copies:
            memory.store(values)
        self.of(barrier).change(arrivals, -read)


# -- products ----------------------------------------------------------------------------------------------------------


class Product:
    """A product under way: its operands are read, and added to the sums before, when it is waited for."""

    def __init__(self, a: Any, b: Memory, before: Any) -> None:
        self.a, self.b, self.before, self.sums = a, b, before, None

    def multiply(self) -> None:
        before = self.before.sums if isinstance(self.before, Product) else self.before
        a = self.a.load(None) if isinstance(self.a, Memory) else self.a
        b = self.b.load(None)
        self.sums = added_up(a[None, :, :], b[None, :, :], before[None, :, :]).reshape(before.shape)
        self.a = self.b = self.before = None


class MatrixUnits(local):
    """Stands in for `warpgroup_mma` and `warpgroup_mma_wait`: each group's products are done in the order of issue."""

    def __init__(self) -> None:
        self.under_way: list[Product] = []

    def issue(self, a: Any, b: Memory, sums: Any, *, use_acc: bool = True, is_async: bool) -> Product:
        assert is_async
        product = Product(a, b, sums if use_acc else tl.zeros(sums.shape, sums.dtype))
        self.under_way.append(product)
        return product

    def wait(self, outstanding: int, deps: list[Any]) -> Any:
        """Return `deps`: tensors where they are done; the others are good for nothing but another product's sums."""
        while len(self.under_way) > number(outstanding):
            self.under_way.pop(0).multiply()
        found = [each.sums if isinstance(each, Product) and each.sums is not None else each for each in deps]
        return found[0] if len(found) == 1 else tuple(found)


# -- groups ------------------------------------------------------------------------------------------------------------


class Groups(PlainTriton):
    """Stands in for `gluon.language`."""

    def __init__(self, turns: Turns, units: MatrixUnits) -> None:
        self.turns, self.units = turns, units

    def zeros(self, shape: list[int], dtype: Any, layout: None) -> Any:
        return tl.zeros(shape, dtype)

    def convert_layout(self, value: Any, layout: None, assert_trivial: bool = False) -> Any:
        return value

    def warp_specialize(self, groups: list[tuple[Callable, tuple]], warps: list[int], registers: list[int]) -> None:
        assert len(warps) == len(registers) == len(groups) - 1  # the first has the program's own

        def run(function: Callable, arguments: tuple) -> None:
            function(*arguments)
            assert not self.units.under_way, "products that were never waited for"

        self.turns.take_all([partial(run, *group) for group in groups])


def interpret(module: ModuleType, patch: pytest.MonkeyPatch, copiers: int = 0) -> None:
    """Interpret that module's kernels from now on. copiers: threads that copy lists of rows."""
    assert triton.runtime.interpreter
    interpreted_gluon.interpret(module, patch)
    turns, units = Turns(), MatrixUnits()
    barriers = Barriers(copiers, turns)
    patch.setattr(module, "gl", Groups(turns, units))
    for name in ("mbarrier", "tma", "async_copy"):
        patch.setattr(module, name, barriers, raising=False)
    patch.setattr(module, "warpgroup_mma", units.issue)
    patch.setattr(module, "warpgroup_mma_wait", units.wait)
    patch.setattr(module, "fence_async_shared", lambda: None)
    patch.setattr(module, "described", described, raising=False)
    patch.setattr(module, "TensorDescriptor", Described, raising=False)
