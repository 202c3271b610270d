"""Where an allocation fails on a GPU, the line ends with whose memory was in the way."""

import pytest
import torch

from gradus.assembly.guard import GuardedCore
from gradus.assembly.memory import enough_memory
from gradus.config.options import EngineConfig, EngineOptions
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import DeviceMemory, OutOfMemory

GPU = torch.device("cuda:1")
LIMITS = ModelLimits(vocab_size=320, context_length=512)
HOLDERS = "; of 100 B, this process holds 5 B, and other processes and CUDA 80 B"


def fails(*_) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture(autouse=True)
def a_full_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a real one would be asked for its processes
    monkeypatch.setattr(DeviceMemory, "of", lambda device: DeviceMemory(free=15, total=100, own=5))


@pytest.mark.parametrize("options", [EngineOptions(LIMITS), EngineConfig(LIMITS, memory_fraction=0.9)])
def test_at_the_start(options):
    with (
        pytest.raises(
            ConfigError, match=r"not enough memory for the weights and a cache of 4096 tokens: lower "
        ) as told,
        enough_memory(options, GPU),
    ):
        fails()
    assert str(told.value).endswith(HOLDERS)


class Engine:
    step = staticmethod(fails)


def test_in_a_step():
    engine = Engine()
    core = GuardedCore(engine, GPU, EngineConfig(LIMITS, memory_fraction=0.9))
    with pytest.raises(OutOfMemory, match="a step found no memory on cuda:1: start again with a lower ") as told:
        core.step()
    assert str(told.value).endswith(HOLDERS)


def test_of_a_cpu_nothing_is_said():
    with (
        pytest.raises(ConfigError, match=r"shows what fits\)$"),
        enough_memory(EngineOptions(LIMITS), torch.device("cpu")),
    ):
        fails()
