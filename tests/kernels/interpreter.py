"""Triton's interpreter, without most of its overhead: the same arithmetic on the same values, in a third of the time.

Triton decides at its import whether it interprets, so the files called `interpreted_*.py` run in processes of their own
(`run_interpreted`). There conftest.py applies `without_overhead`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

HERE = Path(__file__).parent


def run_interpreted(*names: str, stress: bool = False) -> None:
    """Run these files of tests where Triton interprets. A failure there is one here, with what pytest said.

    stress: run what they leave to `make stress`, and nothing else.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in names)]
    command += ["-m", "stress"] if stress else []
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@contextmanager
def without_overhead() -> Iterator[None]:
    """Until the block ends, the interpreter does three things less often than it would.

    It replaces Triton's functions at every call of a kernel, and of a function within one: here once. It computes sums
    of integers again in 64 bits, to see whether they overflow, and drops the answer unless it debugs: here not at all.
    And it reduces one element at a time where it does not know the function: here by halves.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    builder = interpreter.interpreter_builder
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
            patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
            patch.setattr(interpreter.ReduceOps, "generic_reduce", by_halves)
            yield
    finally:
        scope.restore()


def by_halves(self, parts):
    """Combine halves until one element is left, as on a GPU, by the same function: what `generic_reduce` becomes."""
    kinds, numbers = [part.dtype for part in parts], [part.handle.data for part in parts]
    while numbers[0].shape[self.axis] > 1:
        halves = zip(*(np.split(each, 2, self.axis) for each in numbers), strict=True)
        lower, upper = ([*map(self.to_tensor, half, kinds)] for half in halves)
        combined = self.combine_fn.fn(*lower, *upper)
        numbers = [part.handle.data for part in (combined if isinstance(combined, tuple) else (combined,))]
    left = numbers if self.keep_dims else [each.squeeze(self.axis)[()] for each in numbers]
    return [*map(self.to_tensor, left, kinds)]
