"""Read the limits of Linux control groups, such as a container's, for this process: time on cores, and memory.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, "Controllers".
"""

import math
from collections.abc import Iterator
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def share_of_cores(groups: Path | None = None, own: Path | None = None) -> float:
    """Cores by time: the smallest limit of the process's group and those above it (version 2); else infinity."""
    return min((_cores(group) for group in _own_groups(groups or GROUPS, own or OWN)), default=math.inf)


def memory_left(groups: Path | None = None, own: Path | None = None) -> float:
    """Bytes that the process can still take within the limits of its group and those above it; else infinity.

    Cached files that no process uses count as free, because the kernel drops them first. Under version 1 only the limit
    of the topmost group is known, which is the container's own.
    """
    top = groups or GROUPS
    left = [_bytes(group) for group in _own_groups(top, own or OWN)]
    return max(0, min([*left, _number(top / "memory" / "memory.limit_in_bytes")]))


def _own_groups(groups: Path, own: Path) -> Iterator[Path]:
    """The folder of the process's group, and those above it (version 2)."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    group = groups / path
    yield from (group, *group.parents)


def _cores(group: Path) -> float:
    """Parse a limit. `200000 100000`: 200 ms of processor time in each period of 100 ms. `max 100000`: no limit."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _bytes(group: Path) -> float:
    return _number(group / "memory.max") - _number(group / "memory.current", 0) + _unused_files(group)


def _unused_files(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _number(file: Path, otherwise: float = math.inf) -> float:
    """Read the number in a file; `otherwise` if there is no file, or no limit ("max")."""
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return otherwise
