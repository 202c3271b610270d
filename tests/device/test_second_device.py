"""Each device is asked for itself: what runs on the second GPU has nothing from the first."""

import pytest
import torch

from gradus import kernels
from gradus.device import transfer
from gradus.device.capability import Capability, capability
from gradus.device.transfer import Arrival, numbered

SECOND = torch.device("cuda:1")


def test_an_arrival_is_a_point_in_its_own_devices_stream(monkeypatch):
    recorded = []

    class Event:
        def __init__(self, enable_timing):
            assert not enable_timing, "a point that is only waited for costs less"

        def record(self, stream):
            recorded.append(stream)

    monkeypatch.setattr(transfer.torch.cuda, "Event", Event)
    monkeypatch.setattr(transfer, "current_stream", lambda index: f"stream of {index}")
    monkeypatch.setattr(transfer.torch.cuda, "current_device", lambda: 3)
    Arrival(SECOND).renew()
    point = Arrival(torch.device("cuda"))  # the current one,
    monkeypatch.setattr(transfer.torch.cuda, "current_device", lambda: 2)
    point.renew()  # and still that one when another is current
    Arrival(torch.device("cpu")).wait()  # nothing to wait for
    assert recorded == ["stream of 1", "stream of 1", "stream of 3", "stream of 3"]


def test_a_gpu_without_a_number_gets_the_current_ones(monkeypatch):
    monkeypatch.setattr(transfer.torch.cuda, "current_device", lambda: 3)
    assert [str(numbered(torch.device(name))) for name in ("cuda", "cuda:1", "cpu", "meta")] == [
        "cuda:3", "cuda:1", "cpu", "meta",
    ]  # fmt: skip


def test_the_time_between_two_points_is_by_the_devices_clock(monkeypatch):
    class Event:
        recorded = 0.0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            Event.recorded += 250.0
            self.at = Event.recorded

        def elapsed_time(self, later):
            return later.at - self.at  # in milliseconds, as torch has it

    monkeypatch.setattr(transfer.torch.cuda, "Event", Event)
    monkeypatch.setattr(transfer, "current_stream", lambda index: index)
    first, second = (Arrival(SECOND, timed=True) for _ in range(2))
    assert second.since(first) == 0.25


def test_capability_is_the_devices_own(monkeypatch):
    of = {"cuda:0": (9, 0), "cuda:1": (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: of[str(device)])
    assert capability(torch.device("cuda:0")).starts_early and not capability(SECOND).starts_early
    assert capability(torch.device("cpu")) == Capability(8, 0)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_kernels_are_missing_on_a_gpu_older_than_ampere(monkeypatch, device):
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert kernels.missing(device) == "the GPU has compute capability 7.5, and Triton's kernels need 8.0 or newer"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert kernels.missing(device) is None
    assert "the model is on the cpu" in kernels.missing("cpu")


def test_each_device_has_its_own_processors_and_counters(monkeypatch):
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from types import SimpleNamespace

    from gradus.device.capability import multiprocessors
    from gradus.kernels.core.counters import counters_of

    asked = []
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: asked.append(device) or SimpleNamespace(multi_processor_count=58),
    )
    assert multiprocessors(SECOND) == 58 and asked == [SECOND]
    assert counters_of(torch.device("meta"), 4).device.type == "meta" and counters_of(torch.device("cpu"), 4).is_cpu
