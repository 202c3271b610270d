"""Kernels compiled side by side, before the first of them is needed.

Triton compiles a kernel when it is first launched with arguments of a new kind, one after the other, while everything
waits. Most of a compilation runs outside Python's lock (MLIR, LLVM, ptxas), so a machine with many cores can do many at
once. What is to be compiled follows from what is launched; so the launches are gone through once without being made.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from triton import AsyncCompileMode
from triton.runtime.jit import JITFunction


@contextmanager
def compiled_together() -> Iterator[None]:
    """Within, launches of this package's kernels are not made, only compiled, on all cores; at the end all are done.

    Torch's own operations run as ever, on what kernels have not computed: no result means anything, and no index may
    come from one.
    """
    kernels = _kernels()
    with ThreadPoolExecutor(os.cpu_count()) as threads, AsyncCompileMode(threads):
        for kernel in kernels:
            kernel.run = _OnlyCompile(kernel)
        try:
            yield
        finally:
            for kernel in kernels:
                del kernel.run


class _OnlyCompile:
    """Stands in for a kernel's `run`."""

    def __init__(self, kernel: Any) -> None:
        self._run = kernel.run

    def __call__(self, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        return self._run(*args, warmup=True, **kwargs)


def _kernels() -> list[Any]:
    """Of the package's modules that are loaded, each kernel once, wherever it is imported to."""
    modules = [module for name, module in sys.modules.items() if name.startswith("gradus.kernels.")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, JITFunction)]
    return list({id(kernel): kernel for kernel in found}.values())
