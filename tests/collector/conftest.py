"""Python's collector as a program has it, for the tests of this folder."""

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    """Begin each test with everything in the collector's sight, and with the collector's usual settings."""
    if os.environ.get("GRADUS_TEST_COLLECTOR") != "1":
        yield
        return
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
