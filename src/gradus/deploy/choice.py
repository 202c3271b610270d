"""The router's choice between replicas, without Ray: the longest known prefix, unless the load is too uneven.

The router knows a replica's prefixes from two sources: the list that the replica publishes every few seconds, and the
requests that the router itself has sent there. The second source covers the time until the next list, and a published
list replaces what the first lists said: what a replica has forgotten, its router forgets too.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from gradus.deploy.prefixes import MOST_HASHES, RecentPrefixes

Replica = TypeVar("Replica", bound=Hashable)

MAX_IMBALANCE = 16
"""Most requests that the busiest replica may have more than the idlest; beyond that, the least loaded one is chosen."""

OFFER_S = 1.0
"""Seconds for a replica to take or refuse a request; then it no longer counts as offered."""

LEAST_SHARE = 0.3
"""Smallest known share of a prompt's blocks that outweighs load: below it, a short common beginning would draw all
requests to one replica."""


class Choice(Generic[Replica]):
    """One router's view of its replicas: their prefixes, and the requests under way that it has sent."""

    def __init__(self, max_imbalance: int = MAX_IMBALANCE, least_share: float = LEAST_SHARE) -> None:
        self.max_imbalance = max_imbalance
        self.least_share = least_share
        self._sent: dict[Replica, RecentPrefixes] = {}
        self._published: dict[Replica, tuple[int, frozenset[int]]] = {}  # list's version, its hashes
        self._offered: dict[str, tuple[Replica, float]] = {}  # request → replica, when the offer lapses
        self._running: dict[Replica, set[str]] = {}  # ids: a set, so that a callback that comes twice does no harm

    def keep(self, replicas: Iterable[Replica]) -> None:
        """Forget all replicas but these."""
        kept = set(replicas)
        for known in (self._sent, self._published, self._running):
            for gone in known.keys() - kept:
                del known[gone]

    def publish(self, replica: Replica, version: int, hashes: Iterable[int]) -> None:
        """Take a replica's list. A version taken before is ignored, and costs nothing."""
        if self._published.get(replica, (None,))[0] == version:
            return
        self._published[replica] = (version, frozenset(hashes))
        self._sent.pop(replica, None)

    def offer(self, replica: Replica, request: str, hashes: Iterable[int], now: float) -> None:
        """Record that a request is about to be sent: of a burst, each request then counts for the choice of the next.

        An offer that neither begins nor is offered elsewhere lapses after OFFER_S: its client has left.
        """
        self._offered = {name: offer for name, offer in self._offered.items() if offer[1] > now and name != request}
        self._offered[request] = (replica, now + OFFER_S)
        self._prefixes_sent(replica).add(hashes)

    def begin(self, replica: Replica, request: str, hashes: Iterable[int]) -> None:
        """Record that a request was sent. request: its id."""
        self._offered.pop(request, None)
        self._running.setdefault(replica, set()).add(request)
        self._prefixes_sent(replica).add(hashes)

    def end(self, replica: Replica, request: str) -> None:
        """Record that a request has ended, in whatever way; one that the replica refused was never recorded."""
        self._running.get(replica, set()).discard(request)

    def load(self, replica: Replica) -> int:
        offers = sum(offered == replica for offered, _ in self._offered.values())
        return len(self._running.get(replica, ())) + offers

    def _prefixes_sent(self, replica: Replica) -> RecentPrefixes:
        return self._sent.setdefault(replica, RecentPrefixes(MOST_HASHES))

    def matched(self, replica: Replica, hashes: Sequence[int]) -> int:
        """Count the blocks of the longest beginning that the replica knows."""
        sent, published = self._sent.get(replica, ()), self._published.get(replica, (0, frozenset()))[1]
        unknown = (index for index, each in enumerate(hashes) if each not in published and each not in sent)
        return next(unknown, len(hashes))

    def ranked(self, replicas: Sequence[Replica], hashes: Sequence[int]) -> list[Replica]:
        """Order replicas from the most to the least preferred. Equals keep their order."""
        by_load = sorted(replicas, key=self.load)
        if not hashes or self.load(by_load[-1]) - self.load(by_load[0]) > self.max_imbalance:
            return by_load
        blocks = {replica: self.matched(replica, hashes) for replica in replicas}
        least = self.least_share * len(hashes)
        return sorted(by_load, key=lambda replica: -blocks[replica] if blocks[replica] >= least else 0)
