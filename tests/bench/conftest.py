"""A tiny model on a workbench, made once."""

from collections.abc import Iterator

import pytest

from gradus.bench.contenders.workbench import Workbench
from gradus.bench.measure import fingerprint

TINY = ["--model", "random:tiny-llama", "--device", "cpu", "--dtype", "float32"]
RATES = {"read_gb_s": 10.0, "copy_gb_s": 8.0, "float32_tflop_s": 0.05, "bfloat16_tflop_s": 0.05, "launch_us": 3.0}


@pytest.fixture(autouse=True, scope="session")
def _memory_is_not_released() -> Iterator[None]:
    """A full collection after each tiny contender would take longer than its run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradus.bench.contenders.workbench.release", lambda device: None)
        yield


@pytest.fixture(scope="session")
def bench() -> Workbench:
    return Workbench.open("random:tiny-llama", "cpu", "float32")


@pytest.fixture
def known_machine(monkeypatch) -> None:
    """Ceilings without the second that measuring them takes."""
    monkeypatch.setattr(fingerprint, "rates", lambda device, quick=False: RATES)
