"""A model's fingerprint: text that differs for other weights, without reading all of them.

Hashing gigabytes would take longer than loading them. So of each file its name, its size and its time are taken, and
samples of its bytes: a file that another program has replaced, even with the old time, differs in them.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.loading.checkpoint import Checkpoint

SAMPLES, SAMPLE_BYTES = 64, 4096


def fingerprint(checkpoint: "Checkpoint") -> str:
    """Compute a checkpoint's fingerprint. Raises OSError if a file cannot be read."""
    if checkpoint.source is None:
        return checkpoint.name  # random weights follow from the name
    digest = hashlib.blake2b(digest_size=20)
    for path in _files(checkpoint.source):
        found = path.stat()
        digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
        for sample in _samples(path, found.st_size):
            digest.update(sample)
    return digest.hexdigest()


def _files(source: Path) -> list[Path]:
    """The files that weights, or the way to read them, may come from."""
    if not source.is_dir():
        first, of, _ = source.stem.rpartition("-of-")
        return sorted(source.parent.glob(f"{first.rpartition('-')[0]}-*{of}*{source.suffix}")) if of else [source]
    return sorted(path for path in source.iterdir() if path.is_file() and path.suffix in (".json", ".safetensors"))


def _samples(path: Path, size: int) -> Iterator[bytes]:
    """Samples at equal distances, from the beginning to the end."""
    with open(path, "rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
