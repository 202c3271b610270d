"""Who is at the other end of a socket, and processes that end with their parent."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from gradus.device import peer
from gradus.device.peer import die_with, peer_of

LINUX = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="Linux's own call")


@LINUX
def test_the_peer_of_a_socket_is_the_process_that_made_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == (os.geteuid(), os.getpid())


class Library:
    """A C library with the call of macOS and the BSDs; `answer` is what it returns."""

    def __init__(self, answer):
        self.answer = answer

    def getpeereid(self, number, uid, group):
        uid._obj.value, group._obj.value = 501, 20
        return self.answer


def test_elsewhere_the_c_library_names_the_user(monkeypatch):
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    monkeypatch.setattr(peer.ctypes, "CDLL", lambda *_, **__: Library(0))
    with socket.socket(socket.AF_UNIX) as connected:
        assert peer_of(connected) == (501, None)
        monkeypatch.setattr(peer.ctypes, "CDLL", lambda *_, **__: Library(-1))
        with pytest.raises(OSError, match="unknown"):
            peer_of(connected)


def test_a_system_without_an_answer_gives_none(monkeypatch):
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    monkeypatch.setattr(peer.ctypes, "CDLL", lambda *_, **__: object())
    with socket.socket(socket.AF_UNIX) as connected:
        assert peer_of(connected) is None


CHILD = "import os, sys, time; from gradus.device.peer import die_with; print(die_with(os.getppid()), flush=True); "
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD + "time.sleep(60)"!r}], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(60)
"""


@LINUX
def test_a_process_ends_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        pid, kept = parent.stdout.readline().split()
        assert kept == "True"
        child = psutil.Process(int(pid))
        parent.send_signal(signal.SIGKILL)
        end = time.monotonic() + 5
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.01)


@LINUX
def test_a_process_whose_parent_died_before_it_asked_ends_at_once():
    code = f"from gradus.device.peer import die_with; die_with({os.getpid() + 1}); print('still here')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")


def test_a_system_that_cannot_says_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert die_with(os.getppid()) is False
