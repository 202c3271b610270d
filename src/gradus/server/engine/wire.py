"""Messages as bytes, and the private socket that carries them between the server's two processes.

    frame      length u32 (little-endian) · one message in MessagePack
    handshake  engine: Hello(version, pid) · front end: Load(version, loader, settings)

The socket is a file in a new folder that only this user may enter; the front end asks the system which process has
connected, and removes the folder. Nothing that arrives is trusted: a frame is bounded, it decodes to one of the listed
messages or to nothing, and decoding runs no code (no pickle). Other bytes end the connection, not the receiver.
"""

import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

import gradus
from gradus.device.peer import peer_of
from gradus.server.engine.messages import Command, EngineMessage, Message

VERSION = f"1 {gradus.__version__}"  # of the frames and messages; both processes must have the same
LENGTH = struct.Struct("<I")
LARGEST_FRAME = 64 << 20  # bytes: several times the largest prompt
LONGEST_PATH = 103  # bytes of a socket's path on any system (macOS's sun_path, without its final zero)
SOCKET = "engine"  # its name in the folder

T = TypeVar("T")


class WireError(Exception):
    """The other side has sent invalid bytes."""


class Hello(Message):
    """The engine's process has connected."""

    version: str
    pid: int


class Load(Message):
    """Load an engine. loader: a module's name; settings: the fields of a ServerConfig."""

    version: str
    loader: str
    settings: dict[str, Any]


_encode = msgspec.msgpack.Encoder().encode


def frame(message: Message) -> bytes:
    """Encode a message as a frame. Raises WireError if it is too large."""
    content = _encode(message)
    if len(content) > LARGEST_FRAME:
        raise WireError(f"a message of {len(content)} bytes is larger than {LARGEST_FRAME}")
    return LENGTH.pack(len(content)) + content


class Frames(Generic[T]):
    """Cuts a stream of bytes into messages of the types that `decoder` knows."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decode = decoder.decode
        self._begun = bytearray()  # an incomplete frame
        self._needed = 0  # bytes of the whole frame

    def feed(self, received: bytes) -> Iterator[T]:
        """Take bytes; yield the messages that they complete. After a WireError, do not feed it again."""
        if self._begun:
            self._begun += received
            if len(self._begun) < self._needed:
                return
            received = bytes(self._begun)
            self._begun.clear()
        at, there = 0, memoryview(received)
        while (end := at + self._size(there[at:])) <= len(there):
            yield self._message(there[at + LENGTH.size : end])
            at = end
        self._begun += there[at:]
        self._needed = end - at

    def _size(self, there: memoryview) -> int:
        """Return the size of a frame; until its length has arrived, only the size of the length itself."""
        if len(there) < LENGTH.size:
            return LENGTH.size
        (size,) = LENGTH.unpack_from(there)
        if size > LARGEST_FRAME:
            raise WireError(f"a frame of {size} bytes is larger than {LARGEST_FRAME}")
        return int(LENGTH.size + size)

    def _message(self, content: memoryview) -> T:
        try:
            return self._decode(content)
        except Exception as error:  # msgspec's, or a self-checking field's
            raise WireError(f"a frame holds no message: {error}") from error


def commands_and_load() -> "Frames[Load | Command]":
    return Frames(msgspec.msgpack.Decoder(Load | Command))


def hello_and_messages() -> "Frames[Hello | EngineMessage]":
    return Frames(msgspec.msgpack.Decoder(Hello | EngineMessage))


# -- the socket --------------------------------------------------------------------------------------------------------


def _private_folder() -> str:
    """Make a folder that only this user can enter: in /tmp if the usual place makes the socket's path too long, or is
    gone, as a server that runs for months may find it."""
    try:
        folder = tempfile.mkdtemp(prefix="gradus-")  # mode 0700
    except FileNotFoundError:
        return tempfile.mkdtemp(prefix="gradus-", dir="/tmp")
    if len(os.fsencode(os.path.join(folder, SOCKET))) <= LONGEST_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="gradus-", dir="/tmp")


class PrivateSocket:
    """A listening Unix socket in a folder of its own, which `close` removes."""

    def __init__(self) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.folder = _private_folder()
        except BaseException:
            self.listening.close()
            raise
        self.path = os.path.join(self.folder, SOCKET)
        try:
            self.listening.bind(self.path)
            self.listening.listen(1)
            self.listening.setblocking(False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.listening.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def check_peer(connected: socket.socket, pid: int) -> None:
    """Check that the expected process has connected. Raises WireError. A system that does not identify the peer leaves
    the folder's mode as the only protection."""
    peer = peer_of(connected)
    if peer is None:
        return
    if peer.uid != os.geteuid() or peer.pid not in (None, pid):
        raise WireError(f"the engine's socket was connected by process {peer.pid} of user {peer.uid}")
