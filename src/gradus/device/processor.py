"""What Linux says of the processor."""

from pathlib import Path

INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")
"""Those that the speed of products depends on."""


def cpu_info(field: str) -> str:
    """The first value of a field of /proc/cpuinfo; "" where there is none."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def instruction_sets() -> str:
    """Those of INSTRUCTION_SETS that it has, with a blank between two."""
    flags = (cpu_info("flags") or cpu_info("Features")).split()
    return " ".join(name for name in INSTRUCTION_SETS if name in flags)
