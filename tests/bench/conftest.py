"""A tiny model on a workbench, made once."""

import pytest

from gradus.bench.contenders.workbench import Workbench


@pytest.fixture(scope="session")
def bench() -> Workbench:
    return Workbench.open("random:tiny-llama", "cpu", "float32")
