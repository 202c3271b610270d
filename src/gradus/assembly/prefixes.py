"""The second tier of an engine's prefix index: a directory, host memory behind a GPU's, or both.

The directory's part is who may use it, and which of its pages are this engine's.
"""

import hashlib
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from gradus.attention.storage import PagedStorage
from gradus.cache.disk.folder import SECRET_BYTES, PrefixFolder
from gradus.cache.disk.names import Names
from gradus.cache.disk.tier import DiskTier
from gradus.cache.host.files import READERS, Files
from gradus.cache.host.tier import HostTier
from gradus.cache.tier import Tier
from gradus.config.options import USUAL_PREFIX_DIR_SIZE, EngineConfig
from gradus.device.host_memory import HostMemory
from gradus.device.threads import usable_cores
from gradus.engine.engine import Engine
from gradus.errors import ConfigError
from gradus.execution.gpu.page_copies import PageCopies
from gradus.loading import Checkpoint
from gradus.loading.fingerprint import fingerprint
from gradus.models.precision import Precision

STEPS_AHEAD = 2
"""The largest steps that could take pages before they are copied to host memory: one under way, and one more."""


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

    Raises ConfigError for a directory that cannot be used, is not private, or is another engine's; for `host_cache` on
    a CPU, or more of it than there is memory; and for a directory on a GPU without it.
    """
    check_host_cache(options, device)
    if options.prefix_dir is None:
        yield None
        return
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


def check_host_cache(options: EngineConfig, device: torch.device) -> None:
    """Raise ConfigError for a host cache that does not suit the device or the machine."""
    if device.type == "cpu":
        if options.host_cache is not None:
            raise ConfigError("host_cache is behind a GPU's memory: leave it out on a CPU")
        return
    if options.host_cache is None:
        if options.prefix_dir is not None:
            raise ConfigError(
                f"prefix_dir on {device} goes through host memory: set host_cache, the GiB that it may take"
            )
        return
    free = HostMemory.now().free / 2**30
    if options.host_cache > free:
        raise ConfigError(
            f"host_cache {options.host_cache:g} GiB is more than the {free:.3g} GiB that are free: lower it"
        )


def second_tier(
    prefixes: Prefixes | None, config: EngineConfig, storage: PagedStorage, repeats: Callable[[], bool]
) -> Tier | None:
    """Make the second tier of an engine with this storage; None if neither a directory nor host memory is given.

    repeats: as in `HostTier`.

    Raises ConfigError if a page does not fit there.
    """
    if config.host_cache is not None:
        return _host_tier(prefixes, config, config.host_cache, storage, repeats)
    if prefixes is None:
        return None
    return DiskTier(prefixes.folder, _names(prefixes, config, storage), storage, config.page_size)


def _host_tier(
    prefixes: Prefixes | None, config: EngineConfig, size: float, storage: PagedStorage, repeats: Callable[[], bool]
) -> HostTier:
    places = int(size * 2**30) // storage.page_bytes
    if not places:
        raise ConfigError(
            f"a page of this model, {storage.page_bytes / 2**30:.3g} GiB, does not fit into host_cache {size:.3g}: "
            "raise it"
        )
    if prefixes is None:
        names = Names({}, secrets.token_bytes(SECRET_BYTES), config.page_size)
    else:
        names = _names(prefixes, config, storage)
        prefixes.folder.check_room(storage.page_bytes)
    copies = PageCopies(storage, places)
    readers = max(2, min(READERS, usable_cores() // 2))
    files = None if prefixes is None else Files(prefixes.folder, names, copies.view, readers)
    pages = storage.keys.shape[1] - 1
    step = config.budget("cuda") or config.limits.context_length
    ahead = STEPS_AHEAD * -(-step // config.page_size) * len(storage.groups)
    return HostTier(names, copies, places, pages, config.page_size, ahead, files, repeats=repeats)


def _names(prefixes: Prefixes, config: EngineConfig, storage: PagedStorage) -> Names:
    """Name the pages of this engine in its directory, by everything that their bytes depend on."""
    identity = prefixes.model | {
        "code": (_code(), torch.__version__),
        "bytes": (sys.byteorder, storage.page_bytes),
        "tensors": [(str(tensor.dtype), (tensor.shape[0], *tensor.shape[2:])) for tensor in storage.tensors],
        "groups": [astuple(group) for group in storage.groups],
        "page_size": config.page_size,
        "device": storage.keys.device.type,
        "kernels": config.kernels,
        "activations": config.activations,
    }
    return Names(identity, prefixes.folder.secret, config.page_size)


def with_tier(engine: Engine, tier: Tier | None) -> Engine:
    """Start an engine's second tier, which ends with the engine."""
    if tier is not None:
        tier.start()
        engine.close = finalize(engine, tier.close)
    return engine


def _code() -> str:
    """Compute a checksum of all code that computes keys and values: another version may round differently."""
    rooms = [Path(__file__).parents[1] / room for room in ("models", "quantization", "kernels", "attention")]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
