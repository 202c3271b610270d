"""How much memory the machine has, and how much of it is free."""

import os

import psutil
import pytest

from gradus.device import host_memory
from gradus.device.host_memory import HostMemory
from gradus.errors import ConfigError


def hidden(*_: object) -> None:
    raise FileNotFoundError("/proc/meminfo")


@pytest.mark.usefixtures("process")
def test_as_the_system_tells():
    memory = HostMemory.now()
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.free <= memory.total and memory.source == "psutil"


def test_no_more_is_free_than_the_container_has_left(monkeypatch):
    monkeypatch.setattr(host_memory, "memory_left", lambda: 12_345)
    assert HostMemory.now()[1:] == (12_345, "its control group's limit")


@pytest.mark.skipif("SC_AVPHYS_PAGES" not in os.sysconf_names, reason="POSIX tells no free memory here")
def test_without_proc_pages_are_counted(monkeypatch):
    told = HostMemory.now()
    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    counted = HostMemory.now()
    assert counted.total == pytest.approx(told.total, rel=0.05)
    assert 0 < counted.free <= counted.total and counted.source == "POSIX"


def test_a_system_that_tells_nothing_is_asked_for_cache_tokens(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(ConfigError, match="cache_tokens"):
        HostMemory.now()
