"""A second tier below the pool: an evicted page moves down to host memory, and back up when a prompt hits it.

A page is in one tier at a time. The pool evicts the page that has been idle longest, which becomes the most recently
used one of the host. So both tiers are one line in order of last use, and the page that leaves the host is the least
recently used of all. Within a path the deeper page is the older one, so here too ends of paths go first.
"""

from collections.abc import Hashable, Iterator
from hashlib import sha256

from torch import Tensor

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.attention import PageTensors
from phases.p04_paged_cache.engine import page_tensors, paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p05_prefix_cache.radix import Key, page_keys
from phases.p05_prefix_cache.scheduler import PrefixBatching

Name = tuple[bytes, Key]  # the digest of the name before it (b"" for a path's first page), and the page's own key


def names(keys: list[Key]) -> Iterator[Name]:
    """Name each page of a path. Two paths share a name only where they agree from the beginning.

    The tree knows a page by its place. A page that has left the tree needs a name that says as much: vLLM's block hash.
    """
    before = b""
    for key in keys:
        yield before, key
        before = digest((before, key))


def digest(name: Name) -> bytes:
    return sha256(repr(name).encode()).digest()


def copy_out(storage: PageTensors, page: int) -> list[Tensor]:
    """Copy a page's keys, then its values, of all layers: [page_size, Hkv, Dh] each. The page is overwritten soon."""
    return [layer[page].to("cpu", copy=True) for layer in (*storage.keys, *storage.values)]


def copy_in(storage: PageTensors, page: int, contents: list[Tensor]) -> None:
    for layer, kept in zip((*storage.keys, *storage.values), contents, strict=True):
        layer[page] = kept


class TieredCache(PrefixCache):
    """p05's cache over host memory for `host_pages` pages.

    host: contents by name. names: by page, for every page in the tree. fetched_positions: hits that came from the host.
    """

    def __init__(self, pages: int, page_size: int, storage: PageTensors, host_pages: int) -> None:
        super().__init__(pages, page_size)
        self.storage = storage
        self.host_pages = host_pages
        self.host: dict[Name, list[Tensor]] = {}  # least recently used first: a dict keeps the order of its entries
        self.names: dict[int, Name] = {}
        self.fetched_positions = 0

    def admit(self, id: Hashable, tokens: list[int], salt: Hashable) -> int:
        """Begin a sequence as p05 does. Then fetch the next pages of its path, as long as the host has them and the
        pool has room.

        Fetched pages enter the tree. Their positions count as stored, hit and fetched. Returns the number of positions
        found in both tiers.
        """
        found = super().admit(id, tokens, salt)
        table = self.block_tables[id]
        for name in [*names(page_keys(tokens[:-1], self.page_size, salt))][len(table) :]:
            if name not in self.host or not self.pool.available:
                break
            contents = self.host.pop(name)  # first: making room moves another page down
            table += self.take(1)
            copy_in(self.storage, table[-1], contents)
        fetched = len(table) * self.page_size - found
        if fetched:
            self.lengths[id] += fetched
            self.hit_positions += fetched
            self.fetched_positions += fetched
            self.publish(id, tokens, salt)
        return found + fetched

    def publish(self, id: Hashable, tokens: list[int], salt: Hashable) -> None:
        """Publish as p05 does, and name the pages. A page that was computed again leaves the host."""
        super().publish(id, tokens, salt)
        path = names(page_keys(tokens[: self.stored(id)], self.page_size, salt))
        for page, name in zip(self.block_tables[id], path, strict=False):
            self.names[page] = name
            self.host.pop(name, None)

    def evict(self) -> None:
        """Move the page that has been idle longest down. If the host is full, its least recently used page goes."""
        (page,) = self.pool.oldest_idle(1)
        self.host[self.names.pop(page)] = copy_out(self.storage, page)
        if len(self.host) > self.host_pages:
            del self.host[next(iter(self.host))]
        super().evict()

    def forget(self) -> None:
        super().forget()
        self.host.clear()

    def tiers(self) -> tuple[dict[int, Name], tuple[Name, ...]]:
        """For probes: the name of each page in the tree, and those of the pages below, least recently used first."""
        return dict(self.names), tuple(self.host)

    def check(self) -> None:
        """Check as p05 does; a page is in one tier, and no page of the host has lost the one before it."""
        super().check()
        assert len(self.host) <= self.host_pages, f"{len(self.host)} pages in host memory for {self.host_pages}"
        assert self.names.keys() == self.index.owners.keys(), "a page has a name exactly while the tree knows it"
        known = set(self.names.values())
        assert not known & self.host.keys(), "a page is in both tiers"
        behind = {digest(name) for name in known | self.host.keys()}
        assert all(before in behind | {b""} for before, _ in self.host), "a page of the host cannot be reached"


def build(model: Model, options: EngineOptions, host_pages: int) -> Engine:
    """p05's engine with `host_pages` pages of host memory below its pool."""
    storage = page_tensors(model, options)
    cache = TieredCache(options.cache_blocks, options.page_size, storage, host_pages)
    return paged_engine(model, options, PrefixBatching(cache, options.max_sequences), storage=storage)
