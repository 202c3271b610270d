"""Features that numba lacks: arrays at an address, bfloat16, atomic words, a pause. Each is one or two LLVM
instructions.

Kernels see weights, pages and scratch through their addresses. So one compiled kernel serves every layer and every
model, and its code can be kept on disk.
"""

import platform
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray


class _Linked(JITCodeLibrary):
    """The code of a function that only compiled functions call: linked into theirs, without machine code of its own."""

    @property
    def codegen(self) -> Any:
        """numba asks only where to store what the function raises, and that is in its callers' code."""
        return SimpleNamespace(set_env=lambda name, environment: None)

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _optimize_final_module(self) -> None:
        """Leave it to the function that is entered, where everything is optimized together."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Uncounted(NativeLowering):
    """Generate code that counts no references to arrays: kernels make none, and their callers keep those they pass.

    numba counts in each function that takes an array, or a tuple with one. Threads that share a step would take turns
    writing to the counters of its arrays, many times in a stage.
    """

    _name = "lowering_without_counting"

    def run_pass(self, state: Any) -> bool:
        state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(_Uncounted):
    _name = "lowering_for_linking"

    def run_pass(self, state: Any) -> bool:
        state.library = _Linked(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


class _Entered(CompilerBase):
    """numba's compiler, for functions that Python calls."""

    lowering: type[NativeLowering] = _Uncounted

    def define_pipelines(self) -> list[PassManager]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(self.lowering if each is NativeLowering else each, why) for each, why in manager.passes]
        manager.finalize()
        return [manager]


class _Inner(_Entered):
    """The same, for functions that only compiled functions call."""

    lowering = _Lowering


# Sums may be reordered, so that loops become vector instructions. But NaN and infinity must survive: a row that
# contains one ends its own sequence, so kernels must be able to see it.
ENTERED: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "pipeline_class": _Entered,
}
"""Flags of a function that Python calls."""

FLAGS: dict[str, Any] = ENTERED | {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _Inner,
}
"""Flags of all other functions. The code by which Python would call them would be an eighth of all code to compile."""

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

WORD = ir.IntType(64)
HALF, SINGLE, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


LINE = 64
"""Bytes of a cache line."""


def zeros(shape: int | tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Allocate an array that starts on a cache line.

    A vector that straddles two lines takes two reads, and numpy's arrays start 16 bytes into a line: a product of
    several rows, which is bound by reading activations, then takes up to twice as long.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    room = np.zeros(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + size].view(kind).reshape(shape)


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit(**FLAGS)
def floats(address: int, shape: Any) -> Any:
    """View float32 at an address."""
    return carray(_pointer(address), shape, np.float32)


@njit(**FLAGS)
def halves(address: int, shape: Any) -> Any:
    """View 16-bit values at an address: bfloat16, or words of int4."""
    return carray(_pointer(address), shape, np.uint16)


@njit(**FLAGS)
def bytes_at(address: int, shape: Any) -> Any:
    """View int8 at an address."""
    return carray(_pointer(address), shape, np.int8)


@njit(**FLAGS)
def singles(address: int, shape: Any) -> Any:
    """View uint32 at an address."""
    return carray(_pointer(address), shape, np.uint32)


@njit(**FLAGS)
def longs(address: int, shape: Any) -> Any:
    """View int64 at an address."""
    return carray(_pointer(address), shape, np.int64)


@intrinsic
def address(typing: Any, array: Any) -> Any:
    """The address of an array's values."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.ptrtoint(make_array(signature.args[0])(context, builder, args[0]).data, WORD)

    return types.int64(array), generate


@intrinsic
def widen(typing: Any, value: Any) -> Any:
    """Convert to float32: float32 unchanged, uint16 as the bits of a bfloat16, integers by value."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        if value == types.uint16:
            bits = builder.shl(builder.zext(args[0], SINGLE), ir.Constant(SINGLE, 16))
            return builder.bitcast(bits, FLOAT)
        return builder.sitofp(args[0], FLOAT) if isinstance(value, types.Integer) else args[0]

    return types.float32(value), generate


@intrinsic
def narrow(typing: Any, value: Any) -> Any:
    """Round float32 to the bits of the nearest bfloat16, ties to even; NaN stays NaN."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        bits = builder.bitcast(args[0], SINGLE)
        upper = builder.lshr(bits, ir.Constant(SINGLE, 16))
        odd = builder.and_(upper, ir.Constant(SINGLE, 1))
        rounded = builder.lshr(
            builder.add(bits, builder.add(odd, ir.Constant(SINGLE, 0x7FFF))), ir.Constant(SINGLE, 16)
        )
        quiet = builder.or_(upper, ir.Constant(SINGLE, 0x40))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, quiet, rounded), HALF)

    return types.uint16(types.float32), generate


@intrinsic
def bits(typing: Any, value: Any) -> Any:
    """The bits of a float32, sign-extended to a 64-bit integer."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.sext(builder.bitcast(args[0], SINGLE), WORD)

    return types.int64(types.float32), generate


@intrinsic
def power_of_two(typing: Any, exponent: Any) -> Any:
    """Compute 2ⁿ as float32, for n from -126 to 127."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        biased = builder.add(args[0], ir.Constant(SINGLE, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(SINGLE, 23)), FLOAT)

    return types.float32(types.int32), generate


# -- words shared by threads -------------------------------------------------------------------------------------------


def _place(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    return builder.inttoptr(builder.add(args[0], builder.mul(args[1], ir.Constant(WORD, 8))), WORD.as_pointer())


@intrinsic
def load(typing: Any, address: Any, index: Any) -> Any:
    """Load word `index` of an int64 array at an address. Writes made before the word was stored are visible
    afterwards."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load_atomic(_place(context, builder, signature, args), "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def store(typing: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.store_atomic(args[2], _place(context, builder, signature, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def add(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Add to a word, and return its previous value."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.atomic_rmw("add", _place(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def exchange_if(typing: Any, address: Any, index: Any, expected: Any, value: Any) -> Any:
    """Store the value if the word equals `expected`, and return whether it did (compare and swap)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        place = _place(context, builder, signature, args)
        pair = builder.cmpxchg(place, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Signal to the processor that this thread only waits."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        if IS_X86:
            builder.call(_function(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def sleep(typing: Any, microseconds: Any) -> Any:
    """Give up the core for at least this long, by the C library's `usleep`, which every POSIX system has."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function = _function(builder, "usleep", SINGLE, [SINGLE])
        builder.call(function, [builder.trunc(args[0], SINGLE)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _function(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)
