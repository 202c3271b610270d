"""The processor's name and instruction sets: on Linux from /proc/cpuinfo, on macOS from `sysctl`."""

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")
"""The instruction sets that determine the speed of products, by their Linux names."""

APPLES = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
}
"""The same on macOS: a setting that is 1 if the processor has the set → our name of the set."""

ANSWERS_WITHIN_S = 5


def processor_name() -> str:
    """Return the maker's name of the processor; "" if the system does not report it."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu").get("machdep.cpu.brand_string", "")
    return cpu_info("model name") or platform.processor()


def instruction_sets() -> str:
    """List those of INSTRUCTION_SETS (on macOS, of APPLES) that the processor has, separated by blanks."""
    if sys.platform == "darwin":
        said = _sysctl("hw.optional")
        return " ".join(dict.fromkeys(name for key, name in APPLES.items() if said.get(key) == "1"))
    flags = (cpu_info("flags") or cpu_info("Features")).split()
    return " ".join(name for name in INSTRUCTION_SETS if name in flags)


def cpu_info(field: str) -> str:
    """Read the first value of a field of /proc/cpuinfo; "" if there is none."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


@cache
def _sysctl(branch: str) -> dict[str, str]:
    """Read a branch of macOS' settings, printed as lines such as `hw.optional.arm.FEAT_BF16: 1`; empty on failure."""
    command = ["/usr/sbin/sysctl", branch]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWERS_WITHIN_S)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = (line.partition(":") for line in done.stdout.splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}
