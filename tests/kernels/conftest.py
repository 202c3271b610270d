"""In a process where Triton interprets, it does so without its overhead."""

import os
from collections.abc import Iterator

import pytest

from tests.kernels.interpreter import without_overhead


@pytest.fixture(autouse=True, scope="session")
def _interpreter_without_overhead() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    with without_overhead():
        yield
