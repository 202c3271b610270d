"""Programmatic dependent launch: a kernel starts while the one before it in the stream still drains.

Between two launches in a CUDA graph the GPU is idle for about a microsecond, and for another while the last programs
of one finish and the first loads of the next are under way. A kernel launched with `launch_pdl` may start earlier: as
soon as every program of its predecessor has called `let_next_start` (or ended). Until `wait_for_previous` returns it
may touch only what no kernel of the chain writes, such as weights; after it, all that earlier kernels wrote is there.

Safe by two rules. Every kernel launched so calls `wait_for_previous` in each program before its first other read and
before its first write (an earlier kernel may still read what it overwrites). And so no kernel ends before the one
before it has, which makes the order transitive. A kernel launched without `launch_pdl` waits for all before it anyway.

It pays where launches are short, one wave of programs or two. A long one has many waves, and each program of each pays
for its wait: so the caller chooses.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(PDL: tl.constexpr) -> None:
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr) -> None:
    if PDL:
        gdc_wait()
