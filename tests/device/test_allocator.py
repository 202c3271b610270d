"""The settings passed to the C library's allocator, which then hands out the same pages again."""

import os
import subprocess
import sys

import pytest

from gradus.device import allocator
from gradus.device.allocator import CHOICES, keep_freed_memory

PLAIN = {name: value for name, value in os.environ.items() if name not in CHOICES}
FAULTS = """
import resource, sys
from gradus.device.allocator import keep_freed_memory
told = keep_freed_memory({}) if sys.argv[1] == "keep" else True
def blocks():
    return [bytearray(10 << 20) for _ in range(4)]
blocks(), blocks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks()
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the system had to provide for twenty times the same blocks."""
    run = subprocess.run([sys.executable, "-c", FAULTS, how], env=PLAIN, capture_output=True, text=True, check=True)
    told, pages = run.stdout.split()
    if told == "False":
        pytest.skip("an allocator that cannot be told")
    return int(pages)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_blocks_that_were_freed_are_taken_again_without_the_system():
    assert faults("keep") < faults("plain") / 4


def test_the_users_own_choice_stands(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", None)  # no setting is passed
    assert not any(keep_freed_memory({name: "1"}) for name in CHOICES)


def test_another_system_or_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())  # without mallopt
    assert keep_freed_memory({}) is False
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory({}) is False
