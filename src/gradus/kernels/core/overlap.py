"""Programmatic dependent launch: a kernel starts while the one before it in the stream still drains.

Between two launches in a CUDA graph the GPU is idle for about a microsecond, and for another while the last programs
of one finish and the first loads of the next are under way. A kernel launched with `launch_pdl` may start earlier: as
soon as every program of its predecessor has called `let_next_start` (or ended). Until `wait_for_previous` returns it
may touch only memory that no kernel of the chain writes, such as weights; after it, all earlier writes are visible.

Two rules make this safe. Every kernel launched so calls `wait_for_previous` in each program before its first other
read and before its first write (an earlier kernel may still read what it overwrites). So no kernel ends before its
predecessor has, which makes the order transitive. A kernel launched without `launch_pdl` waits for all before it.

A kernel may read one thing more before its wait: what an earlier kernel than its predecessor wrote, if each program of
the predecessor calls `let_next_start` only after its own wait. Those writes are then complete before it starts. Such
reads must pass by the multiprocessor's own cache (".cg"), which may hold what lay there before. The second product of
experts so reads which rows they have (`experts/grouped.py`, `experts/hopper/streamed.py`).

It pays where launches are short: one wave of programs or two. A long launch has many waves, and each program of each
wave pays for its wait. So the caller chooses, by a context:

    with early_launches():
        hidden = model(token_ids, positions, attention)

Every launch of this package inside it starts early; those of a part that must not are inside `early_launches(False)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_EARLY = ContextVar("early launches", default=False)


@contextmanager
def early_launches(wanted: bool = True) -> Iterator[None]:
    """Launch kernels early within this context, or not with False. Only for a device that `starts_early`."""
    before = _EARLY.set(wanted)
    try:
        yield
    finally:
        _EARLY.reset(before)


def starts_early() -> bool:
    """Return whether a launch made now starts early: its kernel's PDL, and its `launch_pdl`."""
    return _EARLY.get()


@triton.jit
def let_next_start(PDL: tl.constexpr) -> None:
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr) -> None:
    if PDL:
        gdc_wait()


@triton.jit
def prefetch(lines: tl.tensor) -> None:
    """Bring cache lines into the L2 cache, before the wait: of memory that no kernel of the chain writes."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
