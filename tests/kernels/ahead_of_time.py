"""Compiling kernels for GPUs that are not here: Triton brings the compiler and the disassembler along."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from gradus.device.capability import Capability

H200 = Capability(9, 0)
# an A100, an RTX 3090, an L4, an H200, a B200, an RTX 5090
EVERY = [Capability(8, 0), Capability(8, 6), Capability(8, 9), H200, Capability(10, 0), Capability(12, 0)]


class Resources(NamedTuple):
    """Of one thread: registers, and bytes of them that had to be spilled to memory. shared: bytes of a program.

    assembly: for NVIDIA's virtual machine (PTX). binary: what its assembler makes of it.
    """

    registers: int
    spilled: int
    shared: int
    assembly: str
    binary: bytes


def compile_for(
    able: Capability, kernel: Any, types: Mapping[str, Any], constants: dict[str, Any], **options: int
) -> Resources:
    """As `source_of` and `triton.compile` take it."""
    compiled = triton.compile(source_of(kernel, types, constants), target=target_of(able), options=options)
    return Resources(
        *_usage(compiled.asm["cubin"]), compiled.metadata.shared, compiled.asm["ptx"], compiled.asm["cubin"]
    )


def target_of(able: Capability) -> GPUTarget:
    return GPUTarget("cuda", 10 * able.major + able.minor, 32)


def source_of(kernel: Any, types: Mapping[str, Any], constants: dict[str, Any]) -> ASTSource:
    """types: of the arguments that are no constants, as Triton spells them ("*bf16", "i32", "fp32"); of one that is a
    tuple, a tuple of the same kind. Of Gluon's descriptors, "tensordesc<bf16[…], …>": block and layout.

    Pointers, and strides ("i32:16"), are taken to be divisible by 16, as the launcher finds them.
    """
    signature: dict[str, Any] = {}
    divisible: dict[tuple[int, ...], Any] = {}
    for number, name in enumerate(kernel.arg_names):
        kind = types.get(name, "constexpr")
        parts = {(number,): kind} if isinstance(kind, str) else {(number, i): part for i, part in enumerate(kind)}
        signature[name] = _bare(kind) if isinstance(kind, str) else type(kind)(*map(_bare, kind))
        for place, part in parts.items():
            if part.startswith("*") or part.endswith(":16"):
                divisible[place] = [["tt.divisibility", 16]]
    return (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, signature, constants, divisible)


def _bare(kind: str) -> str:
    return kind.removesuffix(":16")


def _usage(cubin: bytes) -> tuple[int, int]:
    """What the assembler says of its output: REG is registers per thread, STACK what it keeps in memory instead."""
    told = _dumped(cubin, "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found, told
    return int(found[1]), int(found[2])


def instructions(cubin: bytes) -> str:
    """Of the machine itself (SASS)."""
    return _dumped(cubin, "--dump-sass")


def _dumped(cubin: bytes, option: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
