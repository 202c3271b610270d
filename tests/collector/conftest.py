"""Python's collector as a program has it, for the tests of this folder."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    """Begin each test with everything in the collector's sight, and with the collector's usual settings."""
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
