"""What Linux says of the processor."""

from pathlib import Path


def cpu_info(field: str) -> str:
    """The first value of a field of /proc/cpuinfo; "" where there is none."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
