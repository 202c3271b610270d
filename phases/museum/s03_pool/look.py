"""Where a step of the pool's engine goes, operation by operation: python -m phases.museum.s03_pool.look FILE.

torch's profiler notes when each operation begins and ends, and how much memory it takes. The time of an operation
without the operations that it calls is its self time; its total has them too.
"""

import os
import sys
from pathlib import Path
from typing import Any

from gradus.course.museum import imported


def profiled(pool: Any) -> str:
    """Profile 20 steps in a pool of 64,000 rows. Returns the four operations with the most self time, as a table."""
    import torch
    from torch.profiler import profile

    torch.set_num_threads(1)
    engine = pool.Engine(pool.Model(), pool.Pool(64_000))
    engine.generate([1, 2], steps=2)  # outside the profile: what only the first steps cost
    with profile(profile_memory=True) as seen:
        engine.generate([1, 2], steps=20)
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)[:4]
    lines = [f"{'operation':<20}{'self ms':>10}{'total ms':>10}{'MB taken':>10}{'calls':>8}"]
    for row in rows:
        own, total = row.self_cpu_time_total / 1000, row.cpu_time_total / 1000
        lines.append(f"{row.key:<20}{own:>10.1f}{total:>10.1f}{row.self_cpu_memory_usage / 1e6:>10.1f}{row.count:>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.update(KINETO_LOG_LEVEL="5", TORCH_CPP_LOG_LEVEL="ERROR")  # the profiler's own messages
    print(profiled(imported(Path(sys.argv[1]))))
