"""LLVM code of the kernels' loops, assembled for an ARM, and run there by qemu: one program per call of a loop."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding, ir
from numpy.typing import NDArray

ARM = "aarch64-unknown-linux-gnu"
EMULATOR, ASSEMBLER, LINKER = "qemu-aarch64", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld"
WORD = ir.IntType(64)

needs_emulator = pytest.mark.skipif(
    not (shutil.which(EMULATOR) and shutil.which(LINKER)),
    reason=f"{EMULATOR} or {LINKER} is missing (apt-get install qemu-user binutils-aarch64-linux-gnu)",
)


class Context:
    """The part of numba's context that generators use."""

    def get_dummy_value(self) -> None: ...


def kernel(generate: Any, words: int) -> ir.Module:
    """A module with the generator's code as `kernel`, a function of `words` integers of 64 bits."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * words), "kernel")
    builder = ir.IRBuilder(function.append_basic_block())
    generate(Context(), builder, None, list(function.args))
    builder.ret_void()
    return module


def code_of(generate: Any, words: int) -> str:
    return str(kernel(generate, words))


def assembly_for_arm(code: str, features: str = "") -> str:
    """Its assembly. Raises RuntimeError for code that is of another processor."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    lines = [line for line in code.splitlines() if not line.startswith(("target triple", "target datalayout"))]
    machine = binding.Target.from_triple(ARM).create_target_machine(features=features, opt=2)
    return machine.emit_assembly(binding.parse_assembly("\n".join(lines)))


PROGRAM = """
    .text
    .globl _start
_start:
    bl call
    mov x0, #1
    ldr x1, =arrays
    ldr x2, ={size}
    mov x8, #64  // write
    svc #0
    mov x0, #0
    mov x8, #93  // exit
    svc #0
    .data
    .balign 64
    .globl arrays
arrays:
    .incbin "arrays"
"""
"""Calls the kernel on arrays that it contains, and writes all of them out. It needs no C library."""


def run_on_arm(
    generate: Any, arguments: Sequence[int | NDArray[Any]], folder: Path, features: str = "", processor: str = "max"
) -> None:
    """Call a generator's code in a program of its own on an emulated ARM. Arrays are passed by their addresses, and
    hold afterwards what the program left in them.

    processor: one that qemu knows; an instruction that it lacks ends the program.
    """
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    contents = b"".join(each.tobytes() for each in arrays)
    (folder / "arrays").write_bytes(contents)
    program = assembly_for_arm(str(_call(generate, arguments)), features) + PROGRAM.format(size=len(contents))
    (folder / "kernel.s").write_text(program)
    subprocess.run([ASSEMBLER, "-march=armv8.6-a", "-o", "kernel.o", "kernel.s"], cwd=folder, check=True)
    subprocess.run([LINKER, "-o", "kernel", "kernel.o"], cwd=folder, check=True)
    done = subprocess.run([EMULATOR, "-cpu", processor, "./kernel"], cwd=folder, stdout=subprocess.PIPE, check=True)
    start = 0
    for each in arrays:
        each[...] = np.frombuffer(done.stdout, each.dtype, each.size, start).reshape(each.shape)
        start += each.nbytes


def _call(generate: Any, arguments: Sequence[int | NDArray[Any]]) -> ir.Module:
    """The kernel, and `call`, a function that calls it with these arguments."""
    module = kernel(generate, len(arguments))
    arrays = ir.GlobalVariable(module, ir.IntType(8), "arrays")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "call")
    builder = ir.IRBuilder(function.append_basic_block())
    address, offset, words = builder.ptrtoint(arrays, WORD), 0, []
    for each in arguments:
        if isinstance(each, np.ndarray):
            words.append(builder.add(address, ir.Constant(WORD, offset)))
            offset += each.nbytes
        else:
            words.append(ir.Constant(WORD, each))
    builder.call(module.globals["kernel"], words)
    builder.ret_void()
    return module
