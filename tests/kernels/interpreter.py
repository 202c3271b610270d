"""Triton's interpreter, without most of its overhead: the same arithmetic on the same values, in a tenth of the time.

Triton decides at its import whether it interprets, so the files called `interpreted_*.py` run in processes of their own
(`run_interpreted`). There conftest.py applies `without_overhead`.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.forked import run_forked

HERE = Path(__file__).parent


def run_interpreted(*names: str, stress: bool = False) -> None:
    """Run these files of tests where Triton interprets. A failure there is one here, with what pytest said.

    stress: run what they leave to `make stress`, and nothing else.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in names)]
    command += ["-m", "stress"] if stress else []
    done = run_forked(command, cwd=Path.cwd(), env=os.environ | {"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@contextmanager
def without_overhead() -> Iterator[None]:
    """Until the block ends, the interpreter does five things less often than it would.

    It replaces Triton's functions at every call of a kernel, and of a function within one: here once. It computes sums
    of integers again in 64 bits, to see whether they overflow, and drops the answer unless it debugs: here not at all.
    It reduces one element at a time where it does not know the function: here by halves. It describes every value
    of every operation anew, type and shape: here once for each type and shape there is. And it works out a common type
    and shape for every two operands: here once for each two types, and for each number.
    """
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_attr", with_semantic(interpreter.interpreter_semantic))
        scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
            patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
            patch.setattr(interpreter.ReduceOps, "generic_reduce", by_halves)
            patch.setattr(interpreter, "_get_np_dtype", by_name(interpreter._get_np_dtype))
            patch.setattr(tl.block_type, "__init__", described_once(tl.block_type.__init__))
            patch.setattr(tl.block_type, "with_element_ty", by_names(tl.block_type.with_element_ty))
            patch.setattr(tl.block_type, "to_ir", lambda self, builder: self)  # which it would build again
            patch.setattr(tl.tensor, "__init__", with_shared_shape())
            patch.setattr(tl.core, "_unwrap_if_constexpr", by_type(tl.core._unwrap_if_constexpr))
            patch.setattr(TritonSemantic, "broadcast_impl_value", unless_alike(TritonSemantic.broadcast_impl_value))
            check = TritonSemantic.binary_op_type_checking_impl
            patch.setattr(TritonSemantic, "binary_op_type_checking_impl", unless_known(check))
            yield
    finally:
        scope.restore()


def with_semantic(semantic) -> Callable:
    """Make `_patch_attr`: bind the semantics to Triton's own function, not to the wrapper that asks for them."""

    def patch_attr(owner, name: str, member: Callable, builder, scope) -> None:
        function = getattr(member, "__wrapped__", member)

        def bound(*arguments, **options):
            options["_semantic"] = semantic
            return function(*arguments, **options)

        scope.set_attr(owner, name, bound)

    return patch_attr


def by_halves(self, parts):
    """Combine halves until one element is left, as on a GPU, by the same function: what `generic_reduce` becomes."""
    kinds, numbers = [part.dtype for part in parts], [part.handle.data for part in parts]
    while numbers[0].shape[self.axis] > 1:
        halves = zip(*(np.split(each, 2, self.axis) for each in numbers), strict=True)
        lower, upper = ([*map(self.to_tensor, half, kinds)] for half in halves)
        combined = self.combine_fn.fn(*lower, *upper)
        numbers = [part.handle.data for part in (combined if isinstance(combined, tuple) else (combined,))]
    left = numbers if self.keep_dims else [each.squeeze(self.axis)[()] for each in numbers]
    return [*map(self.to_tensor, left, kinds)]


def by_name(numpy_type: Callable) -> Callable:
    """Look up once per scalar type which numpy type stores it, instead of building the table at each question."""
    known: dict[str, np.dtype] = {}

    def remembered(kind):
        scalar = kind.scalar
        if scalar.name not in known:
            known[scalar.name] = numpy_type(scalar)
        return known[scalar.name]

    return remembered


def described_once(init: Callable) -> Callable:
    """Make `block_type.__init__` check and name each pair of element type and shape once."""
    known: dict[tuple, dict] = {}

    def remembered(self, element_ty, shape):
        key = element_ty.name, *[int(size) for size in shape]
        if key not in known:
            init(self, element_ty, shape)
            known[key] = dict(vars(self))
        vars(self).update(known[key])

    return remembered


def by_names(with_element: Callable) -> Callable:
    """Build the type of other elements in the same shape once for each two."""
    known: dict[tuple[str, str], object] = {}

    def remembered(self, kind):
        key = self.name, kind.name
        if key not in known:
            known[key] = with_element(self, kind)
        return known[key]

    return remembered


def by_type(unwrap: Callable) -> Callable:
    """Unwrap no tensor and no plain number: neither is a constexpr."""
    import triton.language as tl

    plain = tl.tensor, int, float, bool
    return lambda value: value if type(value) in plain else unwrap(value)


def with_shared_shape() -> Callable:
    """Make `tensor.__init__`, but all tensors of one shape share one tuple of sizes, which nothing changes or frees."""
    from triton.language import core

    @cache
    def described(sizes: tuple[int, ...]) -> tuple:
        return core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])

    def init(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = described(tuple(type.shape.values) if type.is_block() else ())

    return init


def unless_alike(broadcast: Callable) -> Callable:
    """Broadcast nothing where both operands share a shape already: most operations."""
    return lambda self, lhs, rhs: (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)


def unless_known(check: Callable) -> Callable:
    """Check once which two types go together as they are, and make a number a constant once for each type and shape."""
    import triton.language as tl

    agree: set[tuple] = set()
    constants: dict[tuple, tl.tensor] = {}

    def checked(self, lhs, rhs, *rules, **named):
        one, other = type(lhs) is tl.tensor, type(rhs) is tl.tensor
        if named or not (one or other):
            return check(self, lhs, rhs, *rules, **named)
        if one and other:
            key = lhs.dtype.name, rhs.dtype.name, rules
            if key in agree:
                return self.broadcast_impl_value(lhs, rhs)
            both = check(self, lhs, rhs, *rules)
            if both[0].dtype == lhs.dtype and both[1].dtype == rhs.dtype:
                agree.add(key)
            return both
        number, tensor = (rhs, lhs) if one else (lhs, rhs)
        key = type(number), number or repr(number), one, tensor.dtype.name, id(tensor.shape), rules  # -0.0 is no 0.0
        if key not in constants:
            both = check(self, lhs, rhs, *rules)
            if both[not one] is not tensor:
                return both
            constants[key] = both[one]
        return (lhs, constants[key]) if one else (constants[key], rhs)

    return checked
