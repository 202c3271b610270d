"""The choice as Ray's request router: `choice.py` with Ray's replicas, lists and callbacks."""

import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from gradus.deploy.choice import LEAST_SHARE, MAX_IMBALANCE, Choice
from gradus.deploy.replica import HASHES, VERSION


class PrefixRouter(RequestRouter):
    """Ranks replicas by `Choice`. Serve takes the first that has room: a full replica never makes a request wait.

    Each choice is for its own request (Serve's FIFOMixin would give it to the oldest one that waits)."""

    def initialize_state(self, max_imbalance: int = MAX_IMBALANCE, least_share: float = LEAST_SHARE) -> None:
        self._choice: Choice[ReplicaID] = Choice(max_imbalance, least_share)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._choice.keep(replica.replica_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        known = {replica.replica_id: replica for replica in candidate_replicas}
        for name, replica in known.items():
            if stats := replica.routing_stats:
                self._choice.publish(name, stats[VERSION], stats[HASHES])
        hashes = hashes_of(pending_request)
        ranked = self._choice.ranked(list(known), hashes)
        if pending_request is not None and ranked:
            self._choice.offer(ranked[0], pending_request.metadata.internal_request_id, hashes, time.monotonic())
        return [[known[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._choice.begin(replica_id, pending_request.metadata.internal_request_id, hashes_of(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._choice.end(replica_id, internal_request_id)


def hashes_of(request: PendingRequest | None) -> tuple[int, ...]:
    """Return the argument of `Replica.admit`; a request without a prompt has no hashes."""
    return request.args[0] if request is not None and request.args else ()
