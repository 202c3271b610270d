"""The directory that keeps an engine's prefixes: who may use it, and which of its pages are this engine's."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from gradus.attention.storage import PagedStorage
from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import Names
from gradus.cache.disk.tier import DiskTier
from gradus.config.options import USUAL_PREFIX_DIR_SIZE, EngineConfig
from gradus.engine.engine import Engine
from gradus.errors import ConfigError
from gradus.loading import Checkpoint
from gradus.loading.fingerprint import fingerprint
from gradus.models.precision import Precision


@dataclass(frozen=True)
class Prefixes:
    """folder: held for one engine. model: what keys and values depend on besides the engine's options."""

    folder: PrefixFolder
    model: dict[str, Any]


@contextmanager
def open_prefixes(
    checkpoint: Checkpoint, options: EngineConfig, device: torch.device, precision: Precision
) -> Iterator[Prefixes | None]:
    """Open the directory that `prefix_dir` names, for the engine that is built in this context; None if it names none.

    Raises ConfigError on a GPU, and for a directory that cannot be used, is not private, or is another engine's.
    """
    if options.prefix_dir is None:
        yield None
        return
    if device.type != "cpu":
        raise ConfigError(f"prefix_dir is for a CPU: leave it out on {device}")
    size = options.prefix_dir_size or USUAL_PREFIX_DIR_SIZE
    folder = PrefixFolder(Path(options.prefix_dir).expanduser(), int(size * 2**30))
    model = {
        "model": asdict(checkpoint.config),
        "weights": fingerprint(checkpoint),
        "precision": precision.name,
        "matrices": None if checkpoint.quantized is None else checkpoint.quantized.rules,
    }
    try:
        yield Prefixes(folder, model)
    except BaseException:  # no engine was built
        folder.close()
        raise


def disk_tier(prefixes: Prefixes | None, config: EngineConfig, storage: PagedStorage) -> DiskTier | None:
    """Make the tier of an engine with this storage; None without a directory."""
    if prefixes is None:
        return None
    identity = prefixes.model | {
        "code": (_code(), torch.__version__),
        "bytes": (sys.byteorder, storage.page_bytes),
        "tensors": [(str(tensor.dtype), (tensor.shape[0], *tensor.shape[2:])) for tensor in storage.tensors],
        "groups": [astuple(group) for group in storage.groups],
        "page_size": config.page_size,
        "kernels": config.kernels,
        "activations": config.activations,
    }
    names = Names(identity, prefixes.folder.secret, config.page_size)
    return DiskTier(prefixes.folder, names, storage, config.page_size)


def with_disk(engine: Engine, disk: DiskTier | None) -> Engine:
    """Start an engine's tier, which ends with the engine."""
    if disk is not None:
        disk.start()
        engine.close = finalize(engine, disk.close)
    return engine


def _code() -> str:
    """Compute a checksum of all code that computes keys and values: another version may round differently."""
    rooms = [Path(__file__).parents[1] / room for room in ("models", "quantization", "kernels", "attention")]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
