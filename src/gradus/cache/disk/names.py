"""A page's name: a hash of everything that its keys and values depend on.

    identity   the weights, the model's shape, the types, the page's layout, this version of Gradus
    salt       which clients may hit it, as in the index
    tokens     all from the beginning to the page's end: each page's hash begins with that of the page before
    group      the layer group

Equal names mean equal bytes, so nothing else is compared. The hash has a key, the directory's secret: names alone
reveal neither prompts nor salts.
"""

import hashlib
import struct
from collections.abc import Hashable
from typing import Any

DIGEST_BYTES = 20
GROUPS = [bytes([group]) for group in range(256)]
ORDER_NS = 1000  # between a page and the next on its path; coarser clocks than this confuse only the end of a path


class Names:
    """Names the pages of one model in one directory.

    identity: of any values whose text is the same for the same pages. secret: the directory's.
    """

    def __init__(self, identity: dict[str, Any], secret: bytes, page_size: int) -> None:
        text = repr(sorted(identity.items())).encode()
        self.folder = hashlib.blake2b(text, key=secret, digest_size=16).hexdigest()
        self._page_size = page_size
        self._hash = hashlib.blake2b(key=secret, digest_size=DIGEST_BYTES)  # copied, since a key takes time to enter

    def trail(self, salt: Hashable, now: int) -> "Trail":
        """Begin a sequence's path. salt: None, or a text. now: in nanoseconds; later ones are evicted later."""
        salted = b"" if salt is None else b"s" + str(salt).encode("utf-8", "surrogatepass")
        return Trail([self._digest(salted)], now)

    def trail_after(self, key: bytes, start: int, now: int) -> "Trail":
        """Begin a sequence's path behind its first `start` pages. key: that of the last page among them."""
        return Trail([key[:DIGEST_BYTES]], now, start)

    def extend(self, trail: "Trail", tokens: list[int], end: int) -> None:
        """Add the pages of a sequence up to page `end` to its trail."""
        first, size = trail.end, self._page_size
        new = tokens[first * size : end * size]
        packed, bytes_each = struct.pack(f"{len(new)}i", *new), 4 * size
        digests, digest, begin = trail.digests, trail.digests[-1], self._hash.copy
        for at in range(0, len(packed), bytes_each):
            hashed = begin()
            hashed.update(digest + packed[at : at + bytes_each])
            digest = hashed.digest()
            digests.append(digest)

    def keys(self, trail: "Trail", first: int, end: int, group: int) -> list[bytes]:
        """Return the keys of pages [first, end), which the trail must know: their names in fewer bytes."""
        suffix, start = GROUPS[group], trail.start - 1
        return [digest + suffix for digest in trail.digests[first - start : end - start]]

    def name(self, trail: "Trail", place: int, group: int) -> str:
        return self.file(self.keys(trail, place, place + 1, group)[0])

    def file(self, key: bytes) -> str:
        """Return the name of a page's file."""
        return f"{self.folder}/{key[:DIGEST_BYTES].hex()}.{key[DIGEST_BYTES]}"

    def _digest(self, text: bytes) -> bytes:
        hashed = self._hash.copy()
        hashed.update(text)
        return hashed.digest()


class Trail:
    """A sequence's path in a second tier.

    start: the pages at its beginning without a digest here. digests: of its first `start` pages (of its salt, if that
    is 0), then of each page. saved: the pages at its beginning that are on disk or were handed over. found: the pages
    that it had from the index when it began. writes: the period of the tier that `saved` is from.
    """

    __slots__ = ("digests", "found", "now", "saved", "start", "writes")

    def __init__(self, digests: list[bytes], now: int, start: int = 0) -> None:
        self.digests, self.now, self.start = digests, now, start
        self.saved = self.found = self.writes = 0

    @property
    def end(self) -> int:
        """How many pages it knows, from the sequence's beginning."""
        return self.start + len(self.digests) - 1

    def order(self, place: int) -> int:
        """The order of eviction of its pages: the end of the path is oldest."""
        return self.now - place * ORDER_NS
