"""The process at the other end of a Unix socket, as the system knows it, and the death of a parent."""

import ctypes
import os
import signal
import socket
import struct
import sys
from typing import NamedTuple

PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Peer(NamedTuple):
    """uid: the user that connected. pid: the process; None where the system does not say."""

    uid: int
    pid: int | None


def peer_of(connected: socket.socket) -> Peer | None:
    """Ask the system who connected a Unix socket; None where it has no answer. No peer can forge the answer."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:  # Linux
        pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
        return Peer(uid, pid)
    ask = getattr(ctypes.CDLL(None, use_errno=True), "getpeereid", None)
    if ask is None:
        return None
    uid_of, group = ctypes.c_uint32(), ctypes.c_uint32()  # macOS, BSD
    if ask(connected.fileno(), ctypes.byref(uid_of), ctypes.byref(group)) != 0:
        raise OSError(ctypes.get_errno(), "the peer of a socket is unknown")
    return Peer(uid_of.value, None)


def die_with(parent: int) -> bool:
    """Have the system kill this process when its parent dies. False where it cannot. Exits if it has died already."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        return False
    kept = set_option(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
    if os.getppid() != parent:
        os._exit(1)
    return kept
