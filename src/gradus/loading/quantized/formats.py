"""Other programs' formats of quantized matrices, converted to our schemes: one function per format.

    AWQ                 qweight i32 [K, N / 8], qzeros i32 [K / g, N / 8], scales f16 [K / g, N]
    GPTQ                qweight i32 [K / 8, N], qzeros i32 [G, N / 8], scales f16 [G, N], g_idx i32 [K]
    compressed-tensors  weight_packed i32 [N, K / 8], weight_scale [N, G], weight_zero_point i32 [N / 8, G]
                        weight int8 or e4m3 [N, K], weight_scale [1], [N, 1] or [blocks, blocks]
    block FP8           weight e4m3 [N, K], weight_scale_inv [⌈N / 128⌉, ⌈K / 128⌉], to multiply by despite its name
    MXFP4 (gpt-oss)     …_blocks u8 [E, N, K / 32, 16], …_scales u8 [E, N, K / 32]: a stack of experts

K inputs, N outputs, g weights per group, G groups per row, E experts. A 32-bit word holds eight 4-bit integers, lowest
first. All 4-bit integers become q in 0 … 15 with w = scale q + offset.
"""

import torch
from torch import Tensor

from gradus.loading.quantized.packed import Packed
from gradus.quantization.fp8 import BLOCK, blocks
from gradus.quantization.int4 import GROUPS, MOST
from gradus.quantization.mxfp4 import NOT_A_NUMBER, blocks_of_pairs
from gradus.quantization.schemes import MXFP4, ORDERED

Shape = tuple[int, ...]

NIBBLES = 8  # in a word
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word is its column AWQ_ORDER[i]
MIDDLE = 8  # the zero point of symmetric integers


class NotReadable(ValueError):
    """A matrix's tensors contradict each other, or are not supported. The message is a clause about the matrix."""


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, symmetric: bool) -> Packed:
    values = nibbles(qweight)[..., _inverse(AWQ_ORDER)].flatten(1).t()  # [N, K]
    zeros = nibbles(qzeros)[..., _inverse(AWQ_ORDER)].flatten(1).t()
    return _int4(values, scales.t(), _middle(zeros) if symmetric else zeros)


def gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, *, zeros_less_one: bool, symmetric: bool
) -> Packed:
    """Convert GPTQ. zeros_less_one: the first version of the format stores zero points minus one.

    Some writers give the second version the first one's name. With symmetric integers that does no harm: the zero point
    is known to be 8, which the two versions store as 7 and 8.
    """
    values = nibbles(qweight).permute(1, 0, 2).flatten(1)  # [N, K]
    zeros = nibbles(qzeros).flatten(1).t()
    if symmetric:
        zeros_less_one = bool((zeros == MIDDLE - 1).all())
    zeros = zeros + int(zeros_less_one)
    return _int4(values, scales.t(), _middle(zeros) if symmetric else zeros, g_idx)


def packed_int4(
    weight: Tensor, scale: Tensor, zero_point: Tensor | None, g_idx: Tensor | None, symmetric: bool
) -> Packed:
    """Convert compressed-tensors' pack-quantized, which stores integers and zero points plus 8."""
    values = nibbles(weight).flatten(1)
    zeros = torch.full(scale.shape, MIDDLE)
    if zero_point is not None and zero_point.dtype == torch.int32:
        zeros = nibbles(zero_point).permute(0, 2, 1).flatten(0, 1)[: len(scale)]
    elif zero_point is not None:  # an older form of symmetric zero points: not packed, and without the 8
        zeros = zero_point + MIDDLE
    return _int4(values, scale, _middle(zeros) if symmetric else zeros, g_idx)


def int8(weight: Tensor, scale: Tensor) -> Packed:
    return Packed("int8", (weight, _per_row(scale, len(weight))))


def fp8(weight: Tensor, scale: Tensor, blocked: bool = False) -> Packed:
    """Convert FP8. scale: one for all, one per row, or one per block of 128 x 128. blocked: as in `fp8_scheme`."""
    scheme = fp8_scheme(tuple(weight.shape), tuple(scale.shape), blocked)
    return Packed(scheme, (weight, _finite(scale) if scheme == "fp8-block" else _per_row(scale, len(weight))))


def mxfp4(blocks: Tensor, scales: Tensor) -> Packed:
    """Convert gpt-oss's stacks: rows of all experts one above another, in the file's order."""
    if (scales == NOT_A_NUMBER).any():
        raise NotReadable("has scales that are not finite")
    found = blocks_of_pairs(blocks.reshape(-1, blocks.shape[-1]), scales.reshape(-1))
    return Packed(MXFP4, (found.view(scales[..., 0].numel(), -1),))


def fp8_scheme(shape: Shape, scale: Shape, blocked: bool = False) -> str:
    """Choose the scheme by the shapes of a matrix and its scales. Their number alone is ambiguous: there may be as many
    blocks as rows.

    blocked: the configuration says that scales are per block, so accept nothing else.
    """
    rows, width = shape
    tiles = blocks(rows), blocks(width)
    if not blocked and scale_per(rows, scale) is not None:
        return "fp8"
    if scale == tiles:
        return "fp8-block"
    others = "" if blocked else f"one, {(rows, 1)} or "
    raise NotReadable(f"has scales of shape {scale}: {others}{tiles} of blocks of {BLOCK} x {BLOCK} can be read")


def scale_per(rows: int, scale: Shape) -> str | None:
    """Name the unit with one scale, by the scales' shape: the matrix ("tensor") or a row ("channel"), else None."""
    if scale in ((), (1,), (1, 1)):
        return "tensor"
    return "channel" if scale in ((rows,), (rows, 1)) else None


def _middle(zeros: Tensor) -> Tensor:
    """Check zero points that the configuration calls symmetric: all must be 8."""
    if not (zeros == MIDDLE).all():
        low, high = zeros.min(), zeros.max()
        raise NotReadable(
            f"has zero points from {low} to {high}, though its integers are said to be symmetric: {MIDDLE} is expected"
        )
    return zeros


def _int4(values: Tensor, scales: Tensor, zeros: Tensor, g_idx: Tensor | None = None) -> Packed:
    """Pack values [N, K] with scales and zeros [N, G]. g_idx [K]: each column's group, if columns are not in order."""
    rows, width = values.shape
    if scales.shape != zeros.shape or len(scales) != rows:
        raise NotReadable(f"has scales {tuple(scales.shape)} and zero points {tuple(zeros.shape)} for {rows} rows")
    order = _order(g_idx, width // scales.shape[1])
    group = stored_group(width, scales.shape[1])
    scales, offsets = scales.float(), -zeros.float() * scales.float()
    scales, offsets = (each.repeat_interleave(width // group // each.shape[1], 1) for each in (scales, offsets))
    return _floating(values.to(torch.uint8), scales, offsets, order)


def _floating(values: Tensor, scales: Tensor, offsets: Tensor, order: Tensor | None = None) -> Packed:
    """Pack values uint8 [N, K], scales and float offsets [N, G]. order [K]: the order of columns sorted by group."""
    largest = torch.finfo(torch.float16).max
    if not (_finite(scales).abs().max() <= largest and _finite(offsets).abs().max() <= largest):
        raise NotReadable("has scales beyond float16")
    scheme = f"int4-g{values.shape[1] // scales.shape[1]}"
    if order is None:
        return Packed(scheme, (values, scales, offsets))
    return Packed(scheme + ORDERED, (values[:, order], scales, offsets, order))


def int4_scheme(width: int, groups: int, g_idx: Tensor | None) -> str:
    """Choose the scheme by the number of groups per row, and each column's group if it is stored."""
    ordered = _order(g_idx, width // groups) is not None
    return f"int4-g{stored_group(width, groups)}{ORDERED if ordered else ''}"


def stored_group(width: int, groups: int) -> int:
    """Choose the largest of our group sizes that divides the checkpoint's."""
    size, left = divmod(width, max(groups, 1))
    fitting = [group for group in GROUPS if size and size % group == 0]
    if left or not fitting:
        raise NotReadable(f"has {groups} groups per row of {width}: groups of multiples of {GROUPS[-1]} can be read")
    return fitting[0]


def _order(g_idx: Tensor | None, group: int) -> Tensor | None:
    """Sort columns by group; None if they are sorted already."""
    if g_idx is None:
        return None
    ascending = torch.arange(len(g_idx)) // group
    if torch.equal(g_idx.long(), ascending):
        return None
    order = g_idx.long().argsort(stable=True)
    if not torch.equal(g_idx.long()[order], ascending):
        raise NotReadable(f"has groups of other sizes than {group}")
    return order


def nibbles(words: Tensor) -> Tensor:
    """Unpack int32 [..., n] → int32 [..., n, 8], each in 0 … 15."""
    shifts = 4 * torch.arange(NIBBLES, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & MOST


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(place) for place in range(len(order))]


def _per_row(scale: Tensor, rows: int) -> Tensor:
    if scale_per(rows, tuple(scale.shape)) is None:
        raise NotReadable(f"has scales of shape {tuple(scale.shape)}: one or {(rows, 1)} can be read")
    return _finite(scale).reshape(-1, 1).expand(rows, 1)


def _finite(scale: Tensor) -> Tensor:
    if not scale.float().isfinite().all():
        raise NotReadable("has scales that are not finite")
    return scale.float()
