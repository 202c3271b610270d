"""The ranks' exchange of tensors. Every result has the same bits on every rank.

An all-reduce may add in any order, and in a different one on each rank. So `Group` gathers the summands and adds them
in rank order: activations are then equal on every rank, and so are the tokens that each rank samples for itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gradus.errors import GradusError

RENDEZVOUS_SECONDS = 120
"""Time limit for all ranks to load, and for every later exchange. It need not be short: a rank that dies closes its
connections at once, and rank 0 kills one that hangs (see ranks.py)."""
LOOK_AROUND_S = 0.02

Check = Callable[[], None]
"""Raises RankLost if another rank is known to be gone."""


def nothing_known() -> None:
    """The `Check` of a rank that hears nothing of the others."""


class RankLost(GradusError):
    """Another rank is gone, so no further step can be computed."""


class Group:
    """The ranks that share a model, and this process's place among them.

    path: a file in a private folder, through which the ranks find each other. device: this rank's; CPUs exchange
    through gloo (on the loopback interface only), GPUs through NCCL. check: called while ranks that have not come yet
    are waited for.

    It uses none of `torch.distributed`'s global state, so the program may have process groups of its own.
    """

    def __init__(self, path: str, rank: int, size: int, device: torch.device, check: Check = nothing_known) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._exchange = _process_group(path, rank, size, device, check)

    def gather(self, x: Tensor) -> Tensor:
        """Collect every rank's x, all of one shape: [size, *x.shape], in rank order. Raises RankLost."""
        parts = x.new_empty((self.size, *x.shape))
        with self.losses():
            self._exchange.allgather([list(parts.unbind())], [x.contiguous()]).wait()
        return parts

    def sum(self, x: Tensor) -> Tensor:
        """Add every rank's x, in rank order and in float32, and round once. Raises RankLost."""
        parts = self.gather(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def send(self, x: Tensor, rank: int) -> "Sending":
        """Begin to send x to one rank, which receives a tensor of its shape. x must not change until that has ended.

        Raises RankLost.
        """
        x = x.contiguous()
        with self.losses():
            return Sending(self, x, self._exchange.send([x], rank, 0))

    def receive(self, like: Tensor, rank: int) -> Tensor:
        """Receive a tensor of the shape and type of `like` from one rank. Raises RankLost."""
        x = torch.empty_like(like)
        with self.losses():
            self._exchange.recv([x], rank, 0).wait()
        return x

    def share(self, x: Tensor, rank: int) -> Tensor:
        """Broadcast one rank's x to every rank; the others' x only give its shape. Raises RankLost."""
        x = x.contiguous()
        with self.losses():
            self._exchange.broadcast(x, rank).wait()
        return x

    @contextmanager
    def losses(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.size} lost another rank: load the model again") from error


@dataclass(frozen=True, slots=True)
class Sending:
    """A tensor on its way to another rank. Keeps its memory."""

    group: Group
    x: Tensor
    work: Any

    def wait(self) -> None:
        """Wait until it has been received; on a GPU, the current stream waits instead. Raises RankLost."""
        with self.group.losses():
            self.work.wait()


def _meet(store: Any, size: int, check: Check) -> None:
    """Wait until all ranks are here: torch's own wait for one that has died meanwhile could not be ended."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    store.add("here", 1)
    while store.add("here", 0) < size:
        check()
        if time.monotonic() > deadline:
            raise RankLost(f"only {store.add('here', 0)} of {size} ranks have come: load the model again")
        time.sleep(LOOK_AROUND_S)


def _process_group(path: str, rank: int, size: int, device: torch.device, check: Check) -> Any:
    # the classes exist only where torch was built with them, and their options have no public names
    backends: Any = dist
    store, timeout = backends.FileStore(path, size), timedelta(seconds=RENDEZVOUS_SECONDS)
    _meet(store, size, check)
    if device.type == "cuda":
        options = backends.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return backends.ProcessGroupNCCL(store, rank, size, options)
    options = backends.ProcessGroupGloo._Options()
    options._devices = [backends.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return backends.ProcessGroupGloo(store, rank, size, options)
