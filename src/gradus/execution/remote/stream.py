"""Frames over a Unix socket, with a peer of the same user.

A runner listens on a file that only its user may open, and both sides ask the system which user is at the other end.
There is no TCP: a port of the loopback interface is open to every user of the machine. `ssh -L` carries a Unix socket
to another machine, encrypted, with both ends checked.
"""

import os
import select
import socket
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gradus.device.peer import peer_of
from gradus.errors import ConfigError, GradusError
from gradus.execution.remote.messages import LARGEST, MessageError

HEAD = struct.Struct("<Ic")
CHUNK = 1 << 18  # bytes of a read
MOST_UNREAD = 2 * LARGEST  # bytes that are kept while a frame is being sent
LONGEST_PATH = 103  # bytes of a socket's path on any system (macOS's sun_path, without its final zero)
PREFIX = "unix:"


class Gone(GradusError):
    """The process at the other end has closed the connection, or died."""


class Frame(NamedTuple):
    kind: bytes
    payload: bytes


def path_of(address: str) -> str:
    """Return the path in an address, unix:/path. Raises ConfigError for any other."""
    path = address.removeprefix(PREFIX)
    if path == address or not path:
        raise ConfigError(
            f"runner: an address has the form {PREFIX}/path, got {address!r}; for a runner on another machine, forward "
            "its socket with ssh -N -L /local/path:/path/there HOST"
        )
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"runner: a socket's path has at most {LONGEST_PATH} bytes, and {path!r} is longer")
    return path


class Stream:
    """One end of a connection. For one thread alone. peer: the other end, in words, for messages."""

    def __init__(self, end: socket.socket, peer: str) -> None:
        self._end, self.peer = end, peer
        self._unread = bytearray()

    def send(self, kind: bytes, payload: bytes, most: int = LARGEST) -> None:
        """Send a frame. Raises Gone if the other process is, MessageError if the payload is too long.

        Reads on while it waits, since the other side may be sending a long frame too: both would wait for ever.
        """
        if len(payload) > most:
            raise MessageError(f"a message of {len(payload)} bytes is longer than {most}")
        left = memoryview(HEAD.pack(len(payload), kind) + payload)
        while left:
            try:
                left = left[self._end.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self._wait_for_room()
            except OSError as error:
                raise Gone(f"{self.peer} is gone") from error

    def _wait_for_room(self) -> None:
        reading = [self._end] if len(self._unread) < MOST_UNREAD else []
        readable, _, _ = select.select(reading, [self._end], [])
        if readable:
            self._read()

    def _read(self) -> None:
        """Read what there is, or wait for it."""
        try:
            chunk = self._end.recv(CHUNK)
        except TimeoutError as error:
            raise Gone(f"{self.peer} says nothing") from error
        except OSError as error:
            raise Gone(f"{self.peer} is gone") from error
        if not chunk:
            raise Gone(f"{self.peer} is gone")
        self._unread += chunk

    def receive(self, most: int = LARGEST) -> Frame:
        """Wait for the next frame. Raises Gone, and MessageError for a payload longer than `most`."""
        unread = self._unread
        while len(unread) < HEAD.size:
            self._read()
        length, kind = HEAD.unpack_from(unread)
        if length > most:
            raise MessageError(f"{self.peer} announces a message of {length} bytes, more than {most}")
        end = HEAD.size + length
        while len(unread) < end:
            self._read()
        payload = bytes(memoryview(unread)[HEAD.size : end])
        del unread[:end]
        return Frame(kind, payload)

    def arrives(self, seconds: float) -> bool:
        """Whether `receive` has something to read, or the end to report, within that time."""
        return bool(self._unread) or bool(select.select([self._end], [], [], seconds)[0])

    def patient(self, seconds: float | None) -> None:
        """Wait at most this long for the next bytes; None: for ever."""
        self._end.settimeout(seconds)

    def close(self) -> None:
        with suppress(OSError):  # the other side has closed it
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def check_peer(connected: socket.socket, peer: str) -> None:
    """Raise Gone if another user is at the other end. Where the system does not say, the file's mode protects alone."""
    found = peer_of(connected)
    if found is not None and found.uid != os.geteuid():
        raise Gone(f"{peer} belongs to user {found.uid}, not to this process's {os.geteuid()}")


def connect(address: str, patience: float) -> Stream:
    """Connect to the runner that listens at unix:/path, waiting at most `patience` seconds for each answer until
    `Stream.patient` says otherwise. Raises ConfigError, in one line, if none does."""
    path, end = path_of(address), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(patience)
    try:
        _join(end, path, patience)
        check_peer(end, f"the runner at {address}")
    except OSError as error:
        end.close()
        raise ConfigError(
            f"no runner listens at {address} ({error.strerror or error}): start one with "
            f"gradus deploy runner --socket {path}"
        ) from error
    except BaseException:
        end.close()
        raise
    return Stream(end, f"the runner at {address}")


def _join(end: socket.socket, path: str, patience: float) -> None:
    """Connect, for `patience` seconds where more engines wait than the system keeps."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return end.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Listener:
    """A Unix socket that waits for engines. `close` removes its file.

    Raises ConfigError for a path that another process listens at, or that is no socket.
    """

    def __init__(self, path: str) -> None:
        self.path = path_of(PREFIX + path)
        _clear(Path(self.path))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the file is private from its first moment
        try:
            self.socket.bind(self.path)
            self.socket.listen(16)
        except OSError as error:
            self.socket.close()
            raise ConfigError(f"cannot listen at {self.path}: {error.strerror}") from error
        finally:
            os.umask(before)

    def accept(self) -> Stream:
        """Wait for an engine. Raises Gone for one of another user."""
        connected, _ = self.socket.accept()
        try:
            check_peer(connected, "the engine")
        except BaseException:
            connected.close()
            raise
        return Stream(connected, "the engine")

    def close(self) -> None:
        self.socket.close()
        with suppress(OSError):
            os.unlink(self.path)


def _clear(path: Path) -> None:
    """Remove the socket of a runner that is gone."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(there.st_mode):
        raise ConfigError(f"cannot listen at {path}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # where many engines wait already
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigError(f"cannot listen at {path}: another process does")
