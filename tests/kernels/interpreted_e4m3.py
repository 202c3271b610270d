"""Rounding to e4m3 as a GPU and torch do it: Triton's interpreter loses the carry where a mantissa rounds up to 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def rounded_to_nearest() -> Iterator[None]:
    interpreted = interpreter._convert_float

    def convert(values: np.ndarray, given: tl.dtype, wanted: tl.dtype, mode: Any) -> np.ndarray:
        if given == tl.float32 and wanted == tl.float8e4nv:
            exact = torch.from_numpy(values.view(np.float32).copy()).to(torch.float8_e4m3fn)
            return exact.view(torch.uint8).numpy()
        return interpreted(values, given, wanted, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", convert)
        yield
