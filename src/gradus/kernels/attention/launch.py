"""The shape of a paged attention launch: the tile of a program, its pipeline, and how many programs fill the GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from gradus.device.capability import Capability
from gradus.errors import ConfigError

H200, H200_PROCESSORS = Capability(9, 0), 132
SMALLEST_TILE = 16  # rows: the fewest that matrix units take
# Programs per multiprocessor that are worth their partial results (`benchmarks/answered/attention_waves.json`): the
# smallest tiles wait for memory. Up to 128 rows a second program multiplies while the first one waits; 256 rows have 16
# warps.
LIVE, TALL_LIVE, TALLEST_LIVE = 4, 2, 1
ADDING = 8.0
# Keys that one program of narrow heads gets through sooner than two add up: three steps of its loop. With heads of 128,
# whose steps are half as long, splitting won from the second step on (`benchmarks/answered/attention_splits.json`).
WHOLE = 384

Shape = tuple[int, int, int, int]  # rows, keys, warps, stages


@dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch: measured (see `_shapes`), not derived.

    rows: per tile; a token takes one for each query head that shares its key head. keys: per step of the loop.
    warps, stages: of a program, and of its pipeline. live: programs per multiprocessor that splitting aims at, where
    as many fit. fits: how many do by their shared memory, until the compiled kernel is asked (`Work`). processors:
    multiprocessors of the GPU. whole: a tile of this many keys or fewer is never split. adding: keys that a program
    attends to while another one adds one more partial result up. halves: products over keys and values of 8 bits are in
    float16 (see `sweep`).
    """

    rows: int
    keys: int
    warps: int
    stages: int
    live: int
    processors: int
    fits: int = LIVE
    whole: int = 0
    adding: float = ADDING
    halves: bool = False

    def tokens(self, group: int) -> int:
        """The tokens that a tile has room for, whose query heads share key heads in groups of `group`."""
        return self.rows // group

    def items(self, kv_heads: int, live: int) -> int:
        """Count the items that run at once with `live` programs per multiprocessor: an item has one per key head."""
        return max(1, live * self.processors // kv_heads)


HOPPER_PAGE = 16
HOPPER_ROWS = 64  # of a tile, for each warpgroup that multiplies
EIGHTHS = 7  # of a tile's rows, at least, that must not be empty


@dataclass(frozen=True, slots=True)
class HopperLaunch(Launch):
    """A shape of `hopper_attention`. One item at once: its tiles are never split.

    head_dim: the width of heads that it is for. consumers: warpgroups that multiply, HOPPER_ROWS rows each. stages:
    blocks of keys and values in shared memory. long, busy, window: it is faster than the kernel of every GPU from this
    many new tokens per span on, if rounds of tiles keep this share of the multiprocessors busy, and windows are no
    shorter.
    """

    head_dim: int = 0
    consumers: int = 0
    long: int = 0
    busy: float = 0.0
    window: int = 0

    @staticmethod
    def of(
        head_dim: int, *, keys: int, stages: int, consumers: int, long: int, busy: float, window: int
    ) -> "HopperLaunch":
        rows, warps = HOPPER_ROWS * consumers, 4 * consumers + 1
        return HopperLaunch(
            rows, keys, warps, stages, live=1, processors=1,
            head_dim=head_dim, consumers=consumers, long=long, busy=busy, window=window,
        )  # fmt: skip

    @staticmethod
    def padded(group: int) -> int:
        """The rows that a token takes: the copy engine's boxes have powers of two."""
        return triton.next_power_of_2(group)

    def tokens(self, group: int) -> int:
        return self.rows // self.padded(group)

    def suits(self, group: int, window: int | None) -> bool:
        """Whether few rows of its tiles are empty in groups of that size, and few scores of its blocks masked."""
        wide = window is None or window >= self.window
        return wide and group <= HOPPER_ROWS and EIGHTHS * self.padded(group) <= 8 * group

    def fills(self, counts: Sequence[int], group: int, kv_heads: int, processors: int) -> bool:
        """Whether `hopper_attention` is the faster kernel for spans with these numbers of new tokens.

        Its programs stay on their multiprocessors and split no tile, so the last round of tiles must not leave too many
        idle. Each tile begins and ends by itself, so spans must be long. They differ: the length asked for is that of
        the span which an average token belongs to.
        """
        tiles = sum(triton.cdiv(count, self.tokens(group)) for count in counts) * kv_heads
        usual = sum(count * count for count in counts) / sum(counts)
        return tiles >= self.busy * processors * triton.cdiv(tiles, processors) and usual >= self.long

    def shortest(self, most: int, group: int, kv_heads: int, processors: int) -> int | None:
        """Find the shortest prompt, of up to `most` tokens, that alone `fills` the GPU; None if none does."""
        lengths = range(self.long, most + 1)
        return next((length for length in lengths if self.fills([length], group, kv_heads, processors)), None)


# Measured: `benchmarks/answered/prompt_attention.json`.
HOPPER_LAUNCHES = {
    each.head_dim: each
    for each in (
        HopperLaunch.of(64, keys=128, stages=4, consumers=3, long=1536, busy=0.8, window=1024),
        HopperLaunch.of(128, keys=64, stages=3, consumers=3, long=512, busy=0.8, window=128),
        HopperLaunch.of(256, keys=64, stages=2, consumers=2, long=512, busy=0.2, window=512),
    )
}


def hopper_launch(head_dim: int, group: int, window: int | None) -> HopperLaunch | None:
    """The shape for long prompts in layers with these heads and that window; None if there is none."""
    launch = HOPPER_LAUNCHES.get(head_dim)
    return launch if launch is not None and launch.suits(group, window) else None


def launches(
    head_dim: int,
    dtype: torch.dtype,
    group: int,
    processors: int = H200_PROCESSORS,
    able: Capability = H200,
    eight_bits: bool = False,
) -> tuple[Launch, ...]:
    """List the shapes to choose from, smallest tile first: a span takes the first that holds it, or else the last.

    dtype: of the queries. eight_bits: keys and values are e4m3, and widened to it. processors: multiprocessors of the
    GPU, which is `able`.

    Raises ConfigError if no tile holds the heads of a token that share a key head.
    """
    wide = triton.next_power_of_2(head_dim) * dtype.itemsize  # bytes of a key
    shapes = _shapes(wide, dtype.itemsize, group, eight_bits)
    cut = [fitted(shape, group, wide, dtype.itemsize, able.shared_memory) for shape in shapes if shape[0] >= group]
    if not cut:
        most = max(shape[0] for shape in shapes)
        raise ConfigError(
            f"with these dtypes and heads of {head_dim}, the attention kernels take at most {most} query heads per key "
            f"head, and the model has {group}: run without kernels and graphs (switch_off)"
        )
    by_rows = {shape[0]: shape for shape in cut}  # a tall tile may have been cut to the size of a small one
    narrow = wide <= 128 and group > 1 and not eight_bits
    return tuple(
        Launch(
            *shape, live=worth(shape[0]), processors=processors,
            fits=able.programs(warps=shape[2], shared=bytes_needed(*shape[:2], shape[3], wide, dtype.itemsize)),
            whole=WHOLE if narrow and shape[0] == SMALLEST_TILE else 0,
            halves=_in_halves(wide, dtype.itemsize, eight_bits) and shape[0] == SMALLEST_TILE,
        )
        for shape in by_rows.values()
    )  # fmt: skip


def _shapes(wide: int, itemsize: int, group: int, eight_bits: bool) -> list[Shape]:
    """List the shapes of a GPU with an H200's shared memory. wide: bytes of a key, widened. itemsize: of its numbers.

    Raced on an H200 in bfloat16, for heads of 64 and 128 (`benchmarks/kernels/paged_attention.py --sweep`). Wider heads
    and wider values take shorter steps, because their tiles must fit the same shared memory; a GPU with less of it
    takes the same shapes, cut to fit (`fitted`).

    tile of               shape                  why
    decodes               32 to 128 keys,        nearly the same with heads of 128: once the batch is large, all read
                          1 to 4 warps           memory at its full speed
      narrow heads        long steps             such heads take more of a program's time for fewer bytes
      without a group     one warp               it waits for no other
    drafts, narrow heads  32 rows: 8 tokens of   up to 14 % less time than 64 rows, for up to eight sequences
      that share keys     up to 4 heads          (`benchmarks/answered/draft_steps.json`, on an H100)
    prompts               256 rows               each key is read half as often as with 128
    8 bits                long steps             the next step's reading hides their widening
                          no tall tiles          they gain nothing
      decodes             products in float16    fewer instructions (`benchmarks/answered/fp8_decode.json`)
      float32, heads 64 * 32 keys                64 spill: widened keys are in registers, each in two parts for TF32
    heads of 512 *        64 rows                they spill where partial results are added up, behind the loop: on a
                                                 Hopper GPU products are warpgroups'. 128 rows do not compile
      8 bits *            32 rows                64 spill within the loop
      float32 *           16 or 32 rows          every shape spills, 32 rows nearly all that they have

    *: compiled for sm_90, not raced.
    """
    if _in_halves(wide, itemsize, eight_bits):
        shapes = [(16, 128, 4, 2), (64, 128, 4, 2 if wide > 128 else 3)]
    elif wide > 512 and itemsize == 2 and not eight_bits:
        shapes = [(16, 16, 4, 3), (64, 32, 8, 2)]
    elif wide > 1024 and group <= SMALLEST_TILE and not eight_bits:
        shapes = [(16, 16, 8, 2)]
    elif wide > 256:
        keys, tall, warps = (32, 64, 8) if wide <= 512 else (16, 32, 8)
        shapes = [(16, keys, 4, 3), (tall, keys, warps, 3)]
    elif wide > 128:
        shapes = [(16, 64, 2, 2), (64, 32 if eight_bits else 64, 4, 3)]
    else:
        shapes = [(16, 64, 1, 2), (64, 64, 4, 3)] if group == 1 else [(16, 128, 4, 2), (32, 128, 4, 2), (64, 64, 4, 3)]
    if wide <= 256 and itemsize == 2 and not eight_bits:
        shapes.append((256, 64, 16, 3) if wide > 128 else (128, 64, 4, 3))
    return shapes


def _in_halves(wide: int, itemsize: int, eight_bits: bool) -> bool:
    """Whether decodes multiply in float16."""
    return eight_bits and wide <= 256 and itemsize == 2


def worth(rows: int) -> int:
    """Choose the programs per multiprocessor that splitting aims at, by the rows of a tile."""
    if rows == SMALLEST_TILE:
        return LIVE
    return TALL_LIVE if rows <= 128 else TALLEST_LIVE


def fitted(shape: Shape, group: int, wide: int, itemsize: int, shared_memory: int) -> Shape:
    """Fit a shape into shared memory: take stages away, and then halve rows and warps, no more often than needed."""
    rows, keys, warps, most = shape
    least = max(SMALLEST_TILE, triton.next_power_of_2(group))  # a token's heads share a tile
    while True:
        for stages in range(most, 1 if rows > least else 0, -1):
            if bytes_needed(rows, keys, stages, wide, itemsize) <= shared_memory:
                return rows, keys, warps, stages
        if rows == least:
            raise ValueError(f"no attention tile of {rows} rows and {keys} keys fits {shared_memory} bytes")
        rows, warps = rows // 2, max(1, warps // 2)


def bytes_needed(rows: int, keys: int, stages: int, wide: int, itemsize: int) -> int:
    """Bound the shared memory of a program whose matrix units read registers.

    It holds the keys and values of all stages but the current one, the queries, and the weights of a step: in float32
    twice, since three TF32 products need each as a high and a low part. On Hopper and the large Blackwells, matrix
    units read tall tiles from shared memory, which then holds all stages; those GPUs have more than enough of it.
    """
    halves = 2 if itemsize == 4 else 1
    return 2 * (stages - 1) * keys * wide + halves * rows * (wide + keys * itemsize)
