"""The directory of pages: one file per page, private to this user, checked when it is read.

    DIR/lock                        held by the engine that uses the directory
    DIR/secret                      32 random bytes: the key of all hashes in names
    DIR/<identity>/<page>.<group>   a page; the identity is a hash of the model and of all that shapes a page's bytes

A file is a header and a page's bytes as the storage has them. It is written under another name and then renamed, so a
process that is killed leaves whole files only. A machine that crashes may leave torn ones: the header has a checksum
of the name and the bytes.

The least recently used files go first. A file's time of modification is its order, which falls along a path from its
beginning. So eviction shortens paths from their ends, and never takes a beginning before its continuation.
"""

import errno
import logging
import os
import re
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradus.cache.usage import DiskUsage
from gradus.errors import ConfigError

log = logging.getLogger(__name__)

MAGIC, VERSION = b"GRADUSKV", 2
HEADER = struct.Struct("<8sIIQ")  # magic, version, checksum of the name and the bytes, count of the bytes
BLOCK = 4096  # bytes: what a file takes on disk is a multiple
MOST_FILES = 1 << 17  # small pages would make more files than a directory should hold
FREED_AT_ONCE = 1 / 32  # of the size, since finding the oldest files means looking at all of them
SECRET_BYTES = 32
PAGE = re.compile(r"[0-9a-f]{40}\.[0-9]+")
UNFINISHED = ".unfinished"
IDENTITY = re.compile(r"[0-9a-f]{32}")


class File(NamedTuple):
    """order: the smallest is evicted first. size: bytes on disk."""

    order: int
    size: int


class PrefixFolder:
    """The files of one directory, for one engine at a time. One thread writes; any may read, remove, and ask `in`.

    most_bytes: the size that all files together may have, those of other models included.
    written_bytes: of all files since the start. damaged: files that were dropped because they could not be used.

    Raises ConfigError, in one line, if the directory cannot be used, if others may read it, or if another engine uses
    it.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path, self.most_bytes = path, most_bytes
        self.written_bytes = self.damaged = 0
        self._warned = False
        self.secret = secret_of(path)
        self._lock = _lock(path)
        self._files: dict[str, File] = {}
        self._counting = threading.Lock()  # guards sums: a reader may drop a file while another one is written
        self.bytes = 0
        self._scan()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self._files)

    def check_room(self, page_bytes: int) -> None:
        """Raise ConfigError if a page is larger than all files together may be."""
        if page_bytes > self.most_bytes:
            raise ConfigError(
                f"a page of this model, {page_bytes / 2**30:.3g} GiB, does not fit into prefix_dir_size "
                f"{self.most_bytes / 2**30:.3g}: raise it"
            )

    def warn_unsaved(self, error: OSError) -> None:
        """Warn that a page could not be written: once, however often that happens."""
        if not self._warned:
            self._warned = True
            log.warning(
                "prefixes are not saved in %s: %s; tried again from time to time, without another warning",
                self.path, error.strerror or error,
            )  # fmt: skip

    def usage(self, hit_positions: int, queued: int, lost: int) -> DiskUsage:
        """Report what is here, and what its user counts (see `DiskUsage`)."""
        return DiskUsage(
            files=len(self),
            bytes=self.bytes,
            most_bytes=self.most_bytes,
            hit_positions=hit_positions,
            written_bytes=self.written_bytes,
            queued=queued,
            lost=lost,
            damaged=self.damaged,
        )

    def close(self) -> None:
        """Let another engine use the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- files ---------------------------------------------------------------------------------------------------------

    def read(self, name: str, count: int) -> memoryview | None:
        """Read a page of `count` bytes. None if it is not there, or not whole: then it is dropped."""
        page = memoryview(bytearray(count))
        return page if self.read_into(name, page) else None

    def read_into(self, name: str, page: memoryview) -> bool:
        """Read a page to where it belongs. False if it is not there, or not whole: then it is dropped."""
        header, more = bytearray(HEADER.size), bytearray(1)
        try:
            there = _read(f"{self.path}/{name}", header, page, more)
        except FileNotFoundError:
            self._forget(name)
            return False
        except OSError as error:
            self._drop(name, error.strerror or str(error))
            return False
        if there != len(header) + len(page):
            wanted = len(header) + len(page)
            self._drop(name, f"its size is not {wanted} bytes, which were written")
            return False
        if HEADER.unpack(header) != (MAGIC, VERSION, checksum(name, page), len(page)):
            self._drop(name, "its checksum is wrong")
            return False
        return True

    def write(self, name: str, page: bytes | bytearray | memoryview, order: int) -> bool:
        """Write a page, if older files make room. Returns whether it is there. Raises OSError if that failed."""
        size = -(-(HEADER.size + len(page)) // BLOCK) * BLOCK
        if not self._make_room(size, order):
            return False
        path, unfinished = self.path / name, self.path / (name + UNFINISHED)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(unfinished, HEADER.pack(MAGIC, VERSION, checksum(name, page), len(page)), page)
            os.utime(unfinished, ns=(order, order))
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        with self._counting:
            self._files[name] = File(order, size)
            self.bytes += size
        self.written_bytes += HEADER.size + len(page)
        return True

    def _write(self, path: Path, *parts: bytes | bytearray | memoryview) -> None:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)

    def touch(self, name: str, order: int) -> None:
        """Note the use of a page. An earlier use than the one known changes nothing."""
        with self._counting:
            known = self._files.get(name)
            later = known is not None and known.order < order
            if known is not None and later:
                self._files[name] = known._replace(order=order)
        if later:
            try:
                os.utime(self.path / name, ns=(order, order))
            except OSError:
                self._forget(name)

    def remove(self, name: str) -> int:
        """Remove a page. One that is not there is allowed. Returns the bytes that it had on disk."""
        freed = self._forget(name)
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self.path / name, error.strerror)
        return freed

    def _drop(self, name: str, why: str) -> None:
        self.damaged += 1
        log.warning("%s is dropped, and computed again when it is needed: %s", self.path / name, why)
        self.remove(name)

    def _forget(self, name: str) -> int:
        with self._counting:
            known = self._files.pop(name, None)
            freed = 0 if known is None else known.size
            self.bytes -= freed
        return freed

    # -- room ----------------------------------------------------------------------------------------------------------

    def _make_room(self, size: int, order: int) -> bool:
        """Remove files that are older than `order` until `size` bytes fit. False if they are not enough."""
        while self.bytes + size > self.most_bytes or len(self._files) >= MOST_FILES:
            freed = max(size, int(self.most_bytes * FREED_AT_ONCE))
            before = len(self._files)
            for name in self._older(order):
                freed -= self.remove(name)
                if freed <= 0:
                    break
            if len(self._files) == before:
                return False
        return True

    def _older(self, order: int) -> list[str]:
        with self._counting:
            older = [(file.order, name) for name, file in self._files.items() if file.order < order]
        return [name for _, name in sorted(older)]

    def _scan(self) -> None:
        """Find the files of earlier engines, and remove what they left unfinished."""
        now = time.time_ns()
        for folder in self._folders():
            for entry in os.scandir(folder):
                if entry.name.endswith(UNFINISHED):
                    Path(entry.path).unlink(missing_ok=True)
                elif PAGE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    size = -(-found.st_size // BLOCK) * BLOCK
                    # a clock that was ahead must not keep a file forever
                    self._files[f"{folder.name}/{entry.name}"] = File(min(found.st_mtime_ns, now), size)
                    self.bytes += size
        if self.bytes > self.most_bytes or len(self._files) > MOST_FILES:
            self._make_room(0, now + 1)

    def _folders(self) -> Iterable[Path]:
        return [Path(entry.path) for entry in os.scandir(self.path) if IDENTITY.fullmatch(entry.name)]


def checksum(name: str, page: bytes | bytearray | memoryview) -> int:
    """Sum a page's blocks as rows of 64-bit numbers, and compute the CRC of its name, of the sum and of the rest.

    The sum runs at the speed of memory, a CRC of all at a tenth of it: a GPU would have computed the page by then. It
    notices what disks and crashes do (bits that flip, blocks that are missing or another file's), though not two blocks
    of a page that change places.
    """
    whole = len(page) // BLOCK * BLOCK
    blocks = np.frombuffer(page, np.uint64, whole // 8).reshape(-1, BLOCK // 8)
    return zlib.crc32(memoryview(page)[whole:], zlib.crc32(blocks.sum(axis=0), zlib.crc32(name.encode())))


def _read(path: str, *parts: bytearray | memoryview) -> int:
    """Fill `parts` from a file, in as few calls as will do. Returns the number of bytes read: fewer at its end."""
    done, left = 0, [memoryview(part) for part in parts]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while left and (count := os.readv(descriptor, left)):
            done += count
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = left[0][count:]
    finally:
        os.close(descriptor)
    return done


def secret_of(path: Path) -> bytes:
    """Return a directory's secret. Makes the directory, and the secret, if they do not exist.

    Raises ConfigError, in one line, if the directory cannot be used or others may read it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(path)
        return _secret(path / "secret")
    except OSError as error:
        raise ConfigError(f"prefix_dir {path} cannot be used: {error.strerror or error}") from error


def _check_private(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(f"prefix_dir {path} belongs to another user: name a directory of your own")
    if found.st_mode & 0o077:
        raise ConfigError(
            f"prefix_dir {path} must be private, since prompts can be read from it: run `chmod 700` on it, or name "
            "another directory"
        )


def _secret(path: Path) -> bytes:
    """Read the secret. The first of several processes to arrive makes it, whole from the start."""
    own = path.with_name(f"secret-{os.getpid()}-{secrets.token_hex(4)}{UNFINISHED}")
    if not path.exists():
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        try:
            os.link(own, path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            own.unlink(missing_ok=True)
    found = path.read_bytes()
    if len(found) != SECRET_BYTES:
        raise ConfigError(f"{path} is damaged: remove the directory {path.parent}, or name another one")
    return found


def _lock(path: Path) -> int:
    import fcntl  # here: it is not everywhere

    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise ConfigError(f"prefix_dir {path} cannot be locked: {error.strerror}") from error
        raise ConfigError(
            f"prefix_dir {path} is in use by another engine: give each one a directory of its own"
        ) from None
    return descriptor
