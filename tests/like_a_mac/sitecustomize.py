"""Linux made to look like a Mac: without /proc and /sys, Linux' own calls, and Triton.

Python imports this file at its start, in every process that has its folder on the path:

    PYTHONPATH=tests/like_a_mac .venv/bin/pytest

psutil keeps /proc, since on a Mac it asks the kernel and learns as much. `sys.platform` stays "linux", since Python's
own library depends on it. So code for "darwin" is not tried, nor are Apple's processors, file systems and libraries.
"""

import builtins
import functools
import importlib.machinery
import io
import multiprocessing
import os
import select
import signal
import socket
import sys
import time

HIDDEN = ("/proc", "/sys")

LINUX_ALONE = {
    os: (
        "copy_file_range", "eventfd", "getrandom", "getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2",
        "posix_fadvise", "posix_fallocate", "process_cpu_count", "removexattr", "sched_getaffinity", "sched_getparam",
        "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setparam", "sched_setscheduler",
        "setns", "setresgid", "setresuid", "setxattr", "splice", "unshare",
    ),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo"),
    socket: ("AF_NETLINK", "AF_VSOCK", "SO_PEERCRED", "SO_BINDTODEVICE"),
    time: ("CLOCK_BOOTTIME",),
}  # fmt: skip


def is_hidden(path: object) -> bool:
    """Whether a path, as text, bytes or an object, lies under HIDDEN. The number of an open file does not."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        return False
    return any(name == folder or name.startswith(f"{folder}/") for folder in HIDDEN)


def without_hidden(function):
    """Wrap a function of a path: except for psutil, it finds nothing under HIDDEN."""

    @functools.wraps(function)
    def looking(path=".", *arguments, **options):
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if is_hidden(path) and not asking.startswith("psutil"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **options)

    return looking


class WithoutTriton(importlib.machinery.PathFinder):
    """There is no Triton for macOS: its folder is not found."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname == "triton" else super().find_spec(fullname, path, target)


for module, names in LINUX_ALONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("stat", "lstat", "listdir", "scandir", "open", "readlink"):
    setattr(os, name, without_hidden(getattr(os, name)))
builtins.open = io.open = without_hidden(builtins.open)
os.sysconf_names.pop("SC_AVPHYS_PAGES", None)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutTriton
multiprocessing.set_start_method("spawn")
