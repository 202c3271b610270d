"""The processor's name and instruction sets, on Linux and on a Mac."""

import subprocess
import sys

import pytest

from gradus.device import processor
from gradus.device.processor import instruction_sets, processor_name

# The answers of an Apple M2, shortened.
SAID = {
    "machdep.cpu": "machdep.cpu.cores_per_package: 8\nmachdep.cpu.brand_string: Apple M2\n",
    "hw.optional": """hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.AdvSIMD: 1
hw.optional.AdvSIMD: 1
hw.optional.floatingpoint: 1
""",
}


@pytest.fixture
def mac(monkeypatch):
    """A Mac's answers; the commands that were run."""
    commands = []

    def run(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, SAID[command[-1]], "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(processor.subprocess, "run", run)
    processor._sysctl.cache_clear()
    yield commands
    processor._sysctl.cache_clear()


def test_a_mac_is_asked_once_for_each(mac):
    for _ in range(2):
        assert processor_name() == "Apple M2"
        assert instruction_sets() == "asimd dotprod bf16 i8mm"
    assert mac == [["/usr/sbin/sysctl", "machdep.cpu"], ["/usr/sbin/sysctl", "hw.optional"]]


@pytest.mark.parametrize("error", [FileNotFoundError("sysctl"), subprocess.TimeoutExpired("sysctl", 5)])
def test_a_mac_that_does_not_answer_has_no_name(mac, monkeypatch, error):
    def run(*_: object, **options: object):
        raise error

    monkeypatch.setattr(processor.subprocess, "run", run)
    assert (processor_name(), instruction_sets()) == ("", "")


def test_linux_is_read_from_its_file(monkeypatch):
    said = {"model name": "Some CPU @ 2 GHz", "flags": "fpu avx2 fma sse2 avx512f"}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(processor, "cpu_info", lambda field: said.get(field, ""))
    assert (processor_name(), instruction_sets()) == ("Some CPU @ 2 GHz", "avx2 fma avx512f")


def test_linux_without_its_file_has_what_python_knows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(processor, "cpu_info", lambda field: "")
    monkeypatch.setattr(processor.platform, "processor", lambda: "aarch64")
    assert (processor_name(), instruction_sets()) == ("aarch64", "")
