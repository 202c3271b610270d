"""Kernels compiled side by side, before the first of them is needed.

Triton compiles a kernel when it is first launched with arguments of a new kind, one after the other, while everything
waits. What is to be compiled follows from what is launched; so the launches are gone through once without being made,
and each kernel that Triton's cache does not have is compiled in a process of its own (`compilers.py`).
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import torch
import triton
from triton import AsyncCompileMode
from triton.compiler import ASTSource

from gradus.device.threads import allowed_cores
from gradus.kernels.core.compilers import Compilers, is_cached, kernels_of, settle_key


@contextmanager
def compiled_together() -> Iterator[None]:
    """Within the block, compile this package's kernels on all cores instead of launching them, and finish at its end.

    Torch's own operations still run, on values that no kernel has computed: no result means anything, and none may be
    used as an index.
    """
    modules = [name for name in sys.modules if name.startswith("gradus.kernels.") and kernels_of([name])]
    kernels, cores = kernels_of(modules), allowed_cores()
    with closing(Compilers(cores, modules)) as compilers, ThreadPoolExecutor(cores) as threads:
        for kernel in kernels:
            settle_key(kernel)
            kernel.device_caches[torch.cuda.current_device()]  # when it is first looked up, `compile` is set
            kernel.run, kernel.compile = _OnlyCompile(kernel), _elsewhere(compilers)
        try:
            with AsyncCompileMode(threads):
                yield
        finally:
            for kernel in kernels:
                del kernel.run
                kernel.compile = triton.compile


class _OnlyCompile:
    """Stands in for a kernel's `run`."""

    def __init__(self, kernel: Any) -> None:
        self._run = kernel.run

    def __call__(self, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        return self._run(*args, warmup=True, **kwargs)


def _elsewhere(compilers: Compilers) -> Callable[..., Any]:
    """Stands in for a kernel's `compile`: what another process has compiled is only read here."""

    def compile(source: ASTSource, target: Any, options: dict[str, Any], **more: Any) -> Any:
        if not is_cached(source, target, options):
            compilers.compile(source, target, options)
        return triton.compile(source, target=target, options=options, **more)

    return compile
