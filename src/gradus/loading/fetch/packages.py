"""Pull a known model: from the hub, or with pip and npm from packages that contain it, and verify it.

The order of steps makes it safe to interrupt, repeat, or run twice at once:

1. A lock file lets one process work on a model; the others wait, and find it done.
2. The hub is tried first if it has the file, and given up within seconds if it cannot be reached. Otherwise `pip
   download` or `npm pack` fetches each part into a separate folder. The part is hashed while it is copied out of its
   archive, and gets its final name only if the hash is right. A final name left by an interrupted run is hashed again.
3. The parts are joined, the whole is hashed, the license texts are placed next to it, and a stamp is written last. A
   model without a valid stamp counts as missing.

Whatever its source, a file is used only if its hash is the catalogue's. pip and npm do the fetching, so the
user's index, proxy and certificates apply. Only wheels and tarballs are fetched, without dependencies, so no code of a
package runs.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import filelock

from gradus.errors import CheckpointError, ConfigError
from gradus.loading.fetch import hub
from gradus.loading.fetch.catalogue import CATALOGUE, STAMP, Entry, Piece
from gradus.loading.fetch.download import member, watch
from gradus.loading.fetch.npm import npm_download
from gradus.loading.progress import Progress, Silent

CHUNK_BYTES = 1 << 20
LARGEST_LICENSE_BYTES = 1 << 22


def pull(name: str, *, progress: Progress | None = None) -> Path:
    """Make a known model available, and return the path of its weights.

    A model that exists already is only verified (its full SHA-256), and fetched again if it is damaged. Raises
    ConfigError for a name that is not in the catalogue, CheckpointError if it cannot be fetched.
    """
    progress = progress or Silent()
    if name not in CATALOGUE:
        raise ConfigError(f"no model named {name!r} to pull; known models are {', '.join(CATALOGUE)}")
    entry = CATALOGUE[name]
    try:
        with _lock(entry, progress):
            if entry.path.is_file() and (entry.folder / STAMP).is_file():
                progress.begin(f"verifying {entry.name}", entry.path.stat().st_size)
                if _sha256(entry.path, progress.advance) == entry.sha256:
                    _stamp(entry)  # the time may have changed: copied, restored from a backup
                    return entry.path
                progress.note(f"{entry.path} is damaged: fetching it again")
            _fetch_all(entry, progress)
    except OSError as error:
        raise CheckpointError(f"{entry.folder}: cannot store {entry.name}: {error.strerror or error}") from error
    return entry.path


def pip_download(package: str, version: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Let pip download the wheel of package==version into an empty `folder`, and report its bytes on disk as they
    grow."""
    temporary = folder / "tmp"  # pip collects a download here: in our folder, so that we can watch it and remove it
    temporary.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{package}=={version}"]
    code, said, seen = watch(command, os.environ | {"TMPDIR": str(temporary)}, temporary, on_bytes)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise CheckpointError(f"pip could not fetch {package}=={version}: {_explain(said)}")
    on_bytes(max(0, wheels[0].stat().st_size - seen))
    return wheels[0]


# -- one model ---------------------------------------------------------------------------------------------------------


@contextmanager
def _lock(entry: Entry, progress: Progress) -> Iterator[None]:
    """Hold the model's lock, one process at a time. The system releases it if the process dies."""
    entry.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(entry.folder.with_name(f"{entry.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        progress.note(f"another process is pulling {entry.name}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_all(entry: Entry, progress: Progress) -> None:
    staging = entry.folder.with_name(f"{entry.name}.partial")
    staging.mkdir(exist_ok=True)
    progress.note(f"{entry.name} comes under {entry.license.name} ({entry.license.url})")
    if not _from_hub(entry, staging, progress):
        _from_packages(entry, staging, progress)
    _stamp(entry)
    shutil.rmtree(staging)


def _from_hub(entry: Entry, staging: Path, progress: Progress) -> bool:
    """Try the hub, and return whether the model is in place now. A failure is noted in one line: packages have it,
    too."""
    if not entry.hub:
        return False
    progress.begin(f"fetching {entry.name} from the hub", entry.size_bytes)
    try:
        file = hub.fetch(entry.hub, entry.file_name, staging / "hub", progress)
        progress.begin(f"verifying {entry.name}", file.stat().st_size)
        found = _sha256(file, progress.advance)
        if found != entry.sha256:
            raise CheckpointError(f"{entry.hub}: {entry.file_name} has SHA-256 {found}, expected {entry.sha256}")
    except CheckpointError as error:
        progress.note(f"{error}: packages have it, too")
        return False
    _make_place(entry)
    os.replace(file, entry.path)
    progress.note(f"{entry.name} came from the hub: {entry.hub}")
    return True


def _from_packages(entry: Entry, staging: Path, progress: Progress) -> None:
    parts = [_fetch_piece(entry, piece, staging / f"part{index}", progress) for index, piece in enumerate(entry.pieces)]
    _make_place(entry)
    _place_license(entry, staging, progress)
    _join(entry, parts, staging / "joined", progress)
    kept = f"; the text of its license is in {entry.folder}" if entry.license.members else ""
    progress.note(f"{entry.name} came from {' and '.join(sorted({piece.registry for piece in entry.pieces}))}{kept}")


def _make_place(entry: Entry) -> None:
    entry.folder.mkdir(exist_ok=True)
    (entry.folder / STAMP).unlink(missing_ok=True)


def _fetch_piece(entry: Entry, piece: Piece, target: Path, progress: Progress) -> Path:
    """Fetch and verify the piece, as `target`; keep a valid `target` from an earlier run."""
    if target.is_file():
        progress.begin(f"verifying {piece.package}", target.stat().st_size)
        if _sha256(target, progress.advance) == piece.sha256:
            return target
        target.unlink()
    with _package(
        piece.registry, piece.package, piece.version, target.parent, progress, piece.download_bytes
    ) as archive:
        unpacked = target.with_suffix(".unverified")
        with member(archive, piece.member, piece.size_bytes) as source, open(unpacked, "wb") as sink:
            found = _copy(source, sink, hashlib.sha256()).hexdigest()
        if found != piece.sha256:
            raise CheckpointError(
                f"{piece.package}=={piece.version}: {piece.member} has SHA-256 {found}, expected {piece.sha256}"
            )
        if piece.package == entry.license.package:
            _unpack_license(entry, archive, target.parent)
        os.replace(unpacked, target)
    return target


def _place_license(entry: Entry, staging: Path, progress: Progress) -> None:
    """Place the license texts next to the model. They may come from a package of their own."""
    terms = entry.license
    names = [Path(member).name for member in terms.members]
    if not all((staging / name).is_file() for name in names):
        with _package("pip", terms.package, terms.version, staging, progress, None) as archive:
            _unpack_license(entry, archive, staging)
    for name in names:
        os.replace(staging / name, entry.folder / name)


def _unpack_license(entry: Entry, archive: Path, folder: Path) -> None:
    for name in entry.license.members:
        with member(archive, name, None) as source:
            (folder / Path(name).name).write_bytes(source.read(LARGEST_LICENSE_BYTES))


def _join(entry: Entry, parts: list[Path], joined: Path, progress: Progress) -> None:
    """Join the weights from their parts, and give them their final name only if the whole hash is right."""
    if len(parts) == 1:  # verified already
        os.replace(parts[0], entry.path)
        return
    progress.begin(f"joining {entry.name}", entry.size_bytes)
    digest = hashlib.sha256()
    with open(joined, "wb") as sink:
        for part in parts:
            with open(part, "rb") as source:
                _copy(source, sink, digest)
            progress.advance(part.stat().st_size)
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(f"{joined}: SHA-256 is {digest.hexdigest()}, expected {entry.sha256} for {entry.name}")
    os.replace(joined, entry.path)


def _stamp(entry: Entry) -> None:
    found = entry.path.stat()
    stamp = {"sha256": entry.sha256, "size": found.st_size, "modified_ns": found.st_mtime_ns}
    unfinished = entry.folder / f"{STAMP}.unfinished"
    unfinished.write_text(json.dumps(stamp))
    os.replace(unfinished, entry.folder / STAMP)


# -- packages ----------------------------------------------------------------------------------------------------------


@contextmanager
def _package(
    registry: str, package: str, version: str, staging: Path, progress: Progress, total: int | None
) -> Iterator[Path]:
    """Fetch a package's archive, and delete it with its folder after use."""
    folder = staging / "download"
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run, so not trusted
    folder.mkdir()
    progress.begin(f"fetching {package}", total)
    fetch = pip_download if registry == "pip" else npm_download
    try:
        yield fetch(package, version, folder, progress.advance)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _explain(said: str) -> str:
    """Shorten pip's stderr to half a line: what is wrong and what to do."""
    if "No module named pip" in said:
        return f"this Python has no pip; add it with `{sys.executable} -m ensurepip`, or `uv pip install pip`"
    unreachable = (
        *("Failed to establish a new connection", "NewConnectionError", "Temporary failure in name resolution"),
        *("Connection refused", "timed out", "ConnectTimeout", "ProxyError", "Max retries exceeded"),
    )
    if any(sign in said for sign in unreachable):
        return "the package index cannot be reached; check the network, or pip's index settings (`pip config list`)"
    if "No matching distribution" in said:
        return (
            "the package index does not have it, or cannot be reached; check the network, or pip's index settings "
            "(`pip config list`)"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1]


# -- bytes -------------------------------------------------------------------------------------------------------------


def _sha256(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def _copy(source: IO[bytes], sink: IO[bytes], digest: "hashlib._Hash") -> "hashlib._Hash":
    """Copy all of `source`, adding it to `digest`."""
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
    return digest
