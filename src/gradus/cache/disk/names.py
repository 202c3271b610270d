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
ORDER_NS = 1000  # between a page and the next on its path; coarser clocks than this confuse only the end of a path


class Names:
    """Names the pages of one model in one directory.

    identity: of any values whose text is the same for the same pages. secret: the directory's.
    """

    def __init__(self, identity: dict[str, Any], secret: bytes, page_size: int) -> None:
        text = repr(sorted(identity.items())).encode()
        self.folder = hashlib.blake2b(text, key=secret, digest_size=16).hexdigest()
        self._secret, self._page_size = secret, page_size

    def trail(self, salt: Hashable, now: int) -> "Trail":
        """Begin a sequence's path. salt: None, or a text. now: in nanoseconds; later ones are evicted later."""
        salted = b"" if salt is None else b"s" + str(salt).encode("utf-8", "surrogatepass")
        return Trail([self._digest(salted)], now)

    def extend(self, trail: "Trail", tokens: list[int], end: int) -> None:
        """Add the pages of a sequence up to page `end` to its trail."""
        size = self._page_size
        for place in range(len(trail.digests) - 1, end):
            page = struct.pack(f"{size}i", *tokens[place * size : (place + 1) * size])
            trail.digests.append(self._digest(trail.digests[-1] + page))

    def name(self, trail: "Trail", place: int, group: int) -> str:
        return f"{self.folder}/{trail.digests[place + 1].hex()}.{group}"

    def _digest(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._secret, digest_size=DIGEST_BYTES).digest()


class Trail:
    """A sequence's path on disk.

    digests: of its salt, then of each page. saved: the pages at its beginning that are on disk or were handed over.
    found: the pages that it had from the index when it began. writes: the period of the tier that `saved` is from.
    worth: whether the host tier puts its pages into files.
    """

    __slots__ = ("digests", "found", "now", "saved", "worth", "writes")

    def __init__(self, digests: list[bytes], now: int) -> None:
        self.digests, self.now = digests, now
        self.saved = self.found = self.writes = 0
        self.worth = False

    def order(self, place: int) -> int:
        """The order of eviction of its pages: the end of the path is oldest."""
        return self.now - place * ORDER_NS
