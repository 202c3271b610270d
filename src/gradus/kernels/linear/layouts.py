"""Layouts of the products in Gluon: in registers they have three dimensions, with one slice of K per warp."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import constexpr, tensor


@gluon.constexpr_function
def products(warps: int) -> gl.NVMMADistributedLayout:
    """Lay out the matrix units' sums, [warps, outputs, rows]."""
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[warps, 1, 1], instr_shape=[1, 16, 8])


@gluon.constexpr_function
def by_output(warps: int) -> gl.BlockedLayout:
    """[warps, outputs, rows]: all warps' sums of an output and a row in one thread."""
    return gl.BlockedLayout([warps, 1, 1], [1, 4, 8], [1, warps, 1], [2, 1, 0])


@gluon.constexpr_function
def one_by_one(rank: int) -> gl.SwizzledSharedLayout:
    """Lay out values in shared memory in their order."""
    return gl.SwizzledSharedLayout(1, 1, 1, [*reversed(range(rank))])


@gluon.constexpr_function
def along(layout: gl.BlockedLayout | gl.DotOperandLayout, dim: int, rank: int) -> gl.SliceLayout:
    """Return the layout of a vector along one dimension."""
    for other in reversed(range(rank)):
        if other != dim:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def indices(COUNT: constexpr, DIM: constexpr, LAYOUT: constexpr, RANK: constexpr = 3) -> tensor:
    """0 … COUNT - 1 along one dimension."""
    numbers = gl.arange(0, COUNT, along(LAYOUT, DIM, RANK))
    for other in gl.static_range(RANK):
        if other != DIM:
            numbers = gl.expand_dims(numbers, other)
    return numbers


@gluon.jit
def normed(x: tensor, gain: tensor, dtype: constexpr) -> tensor:
    """Normalize parts of rows in dtype, except for an RMSNorm's factor; return them and each thread's squares."""
    parts: tensor = ()
    squares = gl.zeros_like(x[0], dtype=gl.float32)
    for part in gl.static_range(len(x)):
        wide = x[part].to(gl.float32)
        squares += wide * wide
        parts += ((wide * gain[part].to(gl.float32)).to(dtype),)
    return parts, squares


# -- sums that meet in shared memory -----------------------------------------------------------------------------------


@gluon.jit
def shared(values: tensor) -> gl.shared_memory_descriptor:
    """The sum of a tuple of tensors, in shared memory."""
    total = values[0]
    for i in gl.static_range(len(values) - 1):
        total += values[i + 1]
    memory = gl.allocate_shared_memory(gl.float32, total.shape, one_by_one(len(total.shape)))
    memory.store(total)
    return memory


@gluon.jit
def scale_of(squares: tensor, eps: float, K: constexpr, LAST: constexpr) -> tensor:
    """An RMSNorm's factor for each row, [1, ROWS]."""
    parts = shared((gl.sum(squares, 1),))
    square = gl.convert_layout(
        gl.sum(parts.load(gl.SliceLayout(1, LAST)), 0), gl.SliceLayout(0, gl.SliceLayout(0, LAST))
    )
    return gl.rsqrt(square / K + eps)[None, :]
