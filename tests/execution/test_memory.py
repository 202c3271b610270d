"""Free memory of a GPU, and who holds the rest, on a GPU that is made up."""

from types import SimpleNamespace

import pytest
import torch

from gradus.execution.memory import device_memory as memory
from gradus.execution.memory.device_memory import DeviceMemory, free_memory, keep

GPU = torch.device("cuda:1")


class Allocator:
    """torch's, over a driver: blocks that tensors hold, and blocks that are kept for tensors to come."""

    def __init__(self, total: int, others: int, held: int, kept: int) -> None:
        self.total, self.others, self.held, self.kept = total, others, held, kept

    def empty_cache(self) -> None:
        self.kept = 0

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.total - self.others - self.held - self.kept, self.total

    def memory_reserved(self, device: torch.device) -> int:
        return self.held + self.kept


@pytest.fixture
def after_an_engine(monkeypatch) -> Allocator:
    """One that is gone has left 60 of 100; tensors of the program hold 5, other processes 15."""
    made_up = Allocator(total=100, others=15, held=5, kept=60)
    for name in ("empty_cache", "mem_get_info", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, getattr(made_up, name))
    return made_up


@pytest.mark.usefixtures("after_an_engine")
def test_what_torch_keeps_of_an_engine_that_is_gone_is_free():
    assert free_memory(GPU) == 80
    found = DeviceMemory.of(GPU)
    assert found == DeviceMemory(free=80, total=100, own=5) and found.others == 15


def test_a_line_says_whose_the_memory_is(monkeypatch):
    found = DeviceMemory(free=10, total=100, own=30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found.holders(GPU) == "; of 100 B, this process holds 30 B, and other processes and CUDA 60 B"
    monkeypatch.setattr(memory, "_processes", lambda device: [(n, 50 - n) for n in range(4)] * (device == GPU))
    assert found.holders(GPU).endswith("60 B (process 0 has 50 B, process 1 has 49 B, process 2 has 48 B)")
    assert DeviceMemory(free=10).holders(torch.device("cpu")) == ""


def test_processes_are_those_of_the_device(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "other_processes", lambda index: asked.append(index) or [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    DeviceMemory(1, 2).holders(GPU)
    assert asked == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for device in (GPU, torch.device("cuda")):
        DeviceMemory(1, 2).holders(device)
    assert asked == [1, 3]


def test_what_is_kept_is_taken_and_given_to_torch(monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "empty", lambda size, **where: taken.append(SimpleNamespace(size=size, **where)))
    keep(9, GPU)
    assert taken == [SimpleNamespace(size=9, dtype=torch.uint8, device=GPU)]


@pytest.mark.gpu
def test_torch_keeps_it_from_other_processes():
    device = torch.device("cuda")
    before = free_memory(device)
    keep(1 << 30, device)
    assert torch.cuda.mem_get_info(device)[0] <= before - (1 << 30)
    assert free_memory(device) >= before - (1 << 26)  # and gives it back
