"""Count what this phase's kernels do while Triton interprets them: the keys and bytes that each program reads.

    gradus demo p09

One step of one layer, with the heads of a model: Ann and Cy decode, and a chunk of Ben's prompt runs with them.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.attention.backend import AttentionBackend
from gradus.cache import TableChange
from gradus.engine.plan import Plan, Span
from gradus.execution.layout import lay_out
from gradus.loading import open_checkpoint
from gradus.models import ModelConfig
from phases.p04_paged_cache.attention import GatherAttention, PageTensors
from phases.p09_triton_attention.attention import TritonAttention
from phases.p09_triton_attention.norm import add_rms_norm
from phases.p09_triton_attention.paged_attention import PROMPT_ROWS, take_in
from phases.p09_triton_attention.splits import attention
from phases.p09_triton_attention.watch import Moved, Watched, watched

MODEL = "random:smollm2-135m"  # only its shape is used
STEP = (("Ann", 1, 70), ("Ben", 40, 60), ("Cy", 1, 300))  # name, new tokens, keys that the last of them sees
Spans = tuple[tuple[str, int, int], ...]
Make = Callable[[ModelConfig, PageTensors], AttentionBackend]
DECODES = tuple(one for one in STEP if one[1] == 1)
PAGE = 16
CPU = torch.device("cpu")


def show(model: str) -> Iterator[str]:
    """Yield the lines of the demo. Raises CheckpointError for a model that is not there."""
    config = open_checkpoint(model).config
    heads = f"{config.num_heads} query heads, {config.num_kv_heads} key heads of {config.head_dim}"
    yield f"One layer with the heads of {model.removeprefix('random:')} ({heads}), float32\n"
    yield from softmax_lines()
    yield from grid_lines(config)
    yield from traffic_lines(config)
    yield from split_lines(config)
    yield from norm_lines(config.hidden_size)


@triton.jit
def kept_kernel(out: tensor, scores: tensor, values: tensor, BLOCKS: constexpr, KEYS: constexpr) -> None:
    """Store what `take_in` keeps, peak, total and seen, after each block of scores."""
    peak, total = tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32)
    seen = tl.zeros([1, 1], tl.float32)
    for block in range(BLOCKS):
        key = block * KEYS + tl.arange(0, KEYS)
        score, value = tl.load(scores + key)[None, :], tl.load(values + key)[:, None]
        seen, total, peak = take_in(seen, total, peak, score, value)
        tl.store(out + 3 * block + tl.arange(0, 1), peak)
        tl.store(out + 3 * block + 1 + tl.arange(0, 1), total)
        tl.store(out + 3 * block + 2 + tl.arange(0, 1), tl.sum(seen, 0))


def softmax_lines() -> Iterator[str]:
    scores = torch.tensor([2.0, 1.0, 4.0, 0.0, 3.0, 4.0])
    out = torch.empty(3, 3)
    kept_kernel[(1,)](out, scores, torch.arange(1.0, 7.0), BLOCKS=3, KEYS=2)
    yield "What take_in keeps of six scores, two at a time:"
    for block, (peak, total, seen) in enumerate(out.tolist()):
        new = " ".join(f"{score:.0f}" for score in scores[2 * block : 2 * block + 2].tolist())
        yield f"  scores {new}   peak {peak:.0f}   total {total:.3f}   seen {seen:.3f}"


# -- the grid, and what moves ------------------------------------------------------------------------------------------


def step(config: ModelConfig, which: Spans) -> tuple[Plan, PageTensors]:
    """Plan these spans, on pages of random keys."""
    pages = iter(range(1, 1000))
    tables = [tuple(next(pages) for _ in range(-(-length // PAGE))) for _, _, length in which]
    spans = [
        Span(None, slot, length - new, range(new), 1, TableChange(0, (table,)))
        for slot, ((_, new, length), table) in enumerate(zip(which, tables, strict=True))
    ]
    storage = PageTensors(config, next(pages), PAGE, torch.float32, CPU)
    for stored in (storage.keys[0], storage.values[0]):
        stored.normal_()
    return Plan(spans), storage


def attend(config: ModelConfig, make: Make, which: Spans) -> tuple[dict[str, Watched], int]:
    """Run one layer's attention: the kernels that ran, and the bytes that torch moved."""
    plan, storage = step(config, which)
    backend, batch = make(config, storage), lay_out(plan, CPU)
    backend.prepare(batch)
    q = torch.randn(len(batch.positions), config.num_heads, config.head_dim)
    with watched() as seen, Moved() as moved:
        backend.attend(0, q, None, None)  # the new keys are stored already
    return seen, moved.total


def grid_lines(config: ModelConfig) -> Iterator[str]:
    seen, _ = attend(config, TritonAttention, STEP)
    kernel = seen["paged_attention_kernel"]
    heads = config.num_kv_heads
    tokens = PROMPT_ROWS // (config.num_heads // heads)
    tiles = len(kernel.read) // (len(STEP) * heads)
    yield f"\nThe grid: {len(STEP)} spans × {tiles} tiles of {tokens} tokens × {heads} key heads. Of key head 0:"
    for span, (name, new, length) in enumerate(STEP):
        for tile in range(tiles):
            read = kernel.read[(span * tiles + tile) * heads]
            first, last = tile * tokens, min((tile + 1) * tokens, new)
            work = f"sees {length - new + last} keys" if first < new else "has no token, and returns"
            yield f"  {name:<4} tile {tile}   {work:<26} reads {read:>9,} bytes"


def traffic_lines(config: ModelConfig) -> Iterator[str]:
    once = sum(length for _, _, length in DECODES) * 2 * config.kv_width * 4
    gathered = attend(config, GatherAttention, DECODES)[1]
    kernel = attend(config, TritonAttention, DECODES)[0]["paged_attention_kernel"]
    moved = sum(kernel.read) + sum(kernel.written)
    yield f"\nThe two decodes alone. Their keys and values are {once:,} bytes."
    yield f"  gathered, then attended   {gathered:>9,} bytes read and written: {gathered / once:.1f} times as many"
    yield f"  through the block table   {moved:>9,} bytes: {moved / once:.2f} times"


def split_lines(config: ModelConfig) -> Iterator[str]:
    whole = attend(config, TritonAttention, DECODES)[0]["paged_attention_kernel"]
    split = attend(config, partial(TritonAttention, kernel=attention), DECODES)[0]
    parts, combined = split["attend_part_kernel"], split["merge_parts_kernel"]
    yield "\nThe same with keys split. A step takes as long as its longest program:"
    yield f"  one program per key head   {whole.programs:>4} programs, the longest reads {max(whole.read):,} bytes"
    yield f"  keys split in parts        {parts.programs:>4} programs, the longest reads {max(parts.read):,} bytes"
    added = sum(parts.written) + sum(combined.read)
    yield f"  then merge                 {combined.programs:>4} programs; partial results cost {added:,} bytes more"


def norm_lines(width: int, rows: int = 8) -> Iterator[str]:
    x, delta, weight = torch.randn(rows, width), torch.randn(rows, width), torch.ones(width)
    with Moved() as apart:
        total = x + delta
        torch.nn.functional.rms_norm(total, (width,), weight, 1e-6)
    with watched() as seen:
        add_rms_norm(x, delta, weight, 1e-6)
    kernel = seen["add_rms_norm_kernel"]
    row = 4 * width
    together = sum(kernel.read) + sum(kernel.written)
    yield f"\nAdd and norm of {rows} rows of {width}, in rows' worth of bytes per row:"
    yield f"  torch, as this CPU runs it   {apart.total / rows / row:.1f}"
    yield f"  one kernel                   {together / rows / row:.1f}   (x, delta and weight in; x and y out)"
