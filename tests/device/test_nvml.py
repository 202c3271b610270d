"""Other processes as NVML lists them, from a library that is made up."""

import os
import sys
from types import SimpleNamespace

import pytest

from gradus.device import nvml


class NVMLError(Exception):
    pass


def library(compute, graphics):
    def raising_if_none(found):
        def look(handle):
            assert handle == "the first"
            if found is None:
                raise NVMLError
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found]

        return look

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: "the first",
        nvmlDeviceGetComputeRunningProcesses=raising_if_none(compute),
        nvmlDeviceGetGraphicsRunningProcesses=raising_if_none(graphics),
    )


@pytest.mark.parametrize(
    ("compute", "graphics", "told"),
    [
        ([(7, 100), (8, 300)], [(9, 200)], [(8, 300), (9, 200), (7, 100)]),
        ([(os.getpid(), 900), (7, None)], [(9, 200)], [(9, 200)]),  # itself, and one whose size is kept from us
        ([(7, 100)], [(7, 100)], [(7, 100)]),
        ([(7, 100)], None, [(7, 100)]),  # a card without an answer
    ],
)
def test_other_processes_are_told_the_largest_first(monkeypatch, compute, graphics, told):
    monkeypatch.setitem(sys.modules, "pynvml", library(compute, graphics))
    monkeypatch.setattr(nvml, "_bus_id", lambda index: b"")
    assert nvml.other_processes(0) == told


def test_without_nvml_none_are_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.other_processes(0) == []
