"""A tiny model on a workbench, made once."""

from collections.abc import Iterator

import pytest

from gradus.bench.contenders.workbench import Workbench


@pytest.fixture(autouse=True, scope="session")
def _memory_is_not_released() -> Iterator[None]:
    """A full collection after each tiny contender would take longer than its run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradus.bench.contenders.workbench.release", lambda device: None)
        yield


@pytest.fixture(scope="session")
def bench() -> Workbench:
    return Workbench.open("random:tiny-llama", "cpu", "float32")
