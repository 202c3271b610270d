"""Compile the two kernels for an H200, with blocks of several sizes, and print the registers. No GPU is needed.

    python -m phases.p09_triton_attention.registers
    python -m phases.p09_triton_attention.registers --impl exercises/p09

A program's values stay in the registers of its threads, and a thread has 255 of them at most. What does not fit
is spilled: written to memory and read again. And the more registers and shared memory a program takes, the fewer of
them a multiprocessor holds: while one waits for memory, another could compute.
"""

import re
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradus import phases

H200 = GPUTarget("cuda", 90, 32)  # compute capability 9.0, 32 threads per warp
WARPS, STAGES = 4, 2  # of a launch, as in `paged_attention`
# A multiprocessor's registers (a thread gets a multiple of 8), bytes of shared memory (1,024 of each program are
# CUDA's own), and threads
REGISTERS, SHARED, THREADS = 65_536, 233_472, 2048
NORM_BLOCKS = (256, 1024, 4096, 8192, 16384)
ATTENTION_KEYS = (16, 32, 64, 128, 256)


class Usage(NamedTuple):
    """registers, and spilled bytes, of a thread; shared: bytes of shared memory of a program."""

    registers: int
    spilled: int
    shared: int

    @property
    def at_once(self) -> int:
        """How many programs a multiprocessor holds."""
        threads, registers = 32 * WARPS, 8 * triton.cdiv(self.registers, 8)
        return min(THREADS // threads, REGISTERS // (threads * registers), SHARED // (self.shared + 1024))


def usage(kernel: Any, types: dict[str, str], constants: dict[str, int]) -> Usage:
    """Compile for an H200.

    types: of the arguments that are no constants ("*bf16", "fp32"). Pointers are taken to be multiples of 16 bytes.
    """
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind.startswith("*")}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned), H200, {"num_warps": WARPS, "num_stages": STAGES}
    )
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout)
    assert found, said.stdout
    return Usage(int(found[1]), int(found[2]), compiled.metadata.shared)


def norm_usage(module: ModuleType, block: int) -> Usage:
    types = dict.fromkeys(("x_ptr", "delta_ptr", "weight_ptr", "y_ptr"), "*bf16") | {"eps": "fp32"}
    return usage(module.add_rms_norm_kernel, types, {"D": block, "BLOCK": block})


def attention_usage(module: ModuleType, keys: int, rows: int) -> Usage:
    """Heads and pages are those of Qwen3-0.6B."""
    types = dict.fromkeys(("out", "q", "keys", "values"), "*bf16")
    types |= dict.fromkeys(("tables", "query_start", "lengths"), "*i64")
    types |= {"table_width": "i32", "scale": "fp32", "softcap": "fp32"}
    constants = {"HEADS": 8, "GROUP": 2, "HEAD_DIM": 128, "PAGE": 16, "WINDOW": 0, "SOFTCAP": False, "WIDTH": 128}
    return usage(module.paged_attention_kernel, types, constants | {"ROWS": rows, "KEYS": keys})


def table(blocks: Sequence[int], found: Sequence[Usage]) -> Iterator[str]:
    yield "   block   registers   spilled   shared   programs at once"
    for block, one in zip(blocks, found, strict=True):
        yield f"{block:8,}{one.registers:12}{one.spilled:10,}{one.shared:9,}{one.at_once:19}"


def show(norm: ModuleType, attention: ModuleType) -> Iterator[str]:
    yield "add_rms_norm_kernel, by BLOCK: a row of so many numbers"
    yield from table(NORM_BLOCKS, [norm_usage(norm, block) for block in NORM_BLOCKS])
    for rows in (attention.DECODE_ROWS, attention.PROMPT_ROWS):
        yield f"\npaged_attention_kernel, {rows} rows, by KEYS: keys that a program processes at once"
        yield from table(ATTENTION_KEYS, [attention_usage(attention, keys, rows) for keys in ATTENTION_KEYS])


def main() -> None:
    parser = ArgumentParser(description="Registers of p09's kernels, compiled for an H200.")
    parser.add_argument("--impl", type=Path, help="a folder with your kernels")
    impl = parser.parse_args().impl
    p09 = phases.find("p09") if impl is None else phases.solution("p09", impl)
    for line in show(p09.module("norm"), p09.module("paged_attention")):
        print(line, flush=True)


if __name__ == "__main__":
    main()
