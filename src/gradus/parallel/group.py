"""The ranks' exchange of tensors. Every result has the same bits on every rank.

An all-reduce may add in any order, and in a different one on each rank. So `Group` gathers the summands and adds them
in rank order: activations are then equal on every rank, and so are the tokens that each rank samples for itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gradus.errors import GradusError

RENDEZVOUS_SECONDS = 120
"""Time limit for all ranks to load, and for every later exchange. It need not be short: a rank that dies closes its
connections at once, and rank 0 kills one that hangs (see ranks.py)."""


class RankLost(GradusError):
    """Another rank is gone, so no further step can be computed."""


class Group:
    """The ranks that share a model, and this process's place among them.

    path: a file in a private folder, through which the ranks find each other. device: this rank's; CPUs exchange
    through gloo (on the loopback interface only), GPUs through NCCL.

    It uses none of `torch.distributed`'s global state, so the program may have process groups of its own.
    """

    def __init__(self, path: str, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._exchange = _process_group(path, rank, size, device)

    def gather(self, x: Tensor) -> Tensor:
        """Collect every rank's x, all of one shape: [size, *x.shape], in rank order. Raises RankLost."""
        parts = x.new_empty((self.size, *x.shape))
        with self._losses():
            self._exchange.allgather([list(parts.unbind())], [x.contiguous()]).wait()
        return parts

    def sum(self, x: Tensor) -> Tensor:
        """Add every rank's x, in rank order and in float32, and round once. Raises RankLost."""
        parts = self.gather(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def send(self, x: Tensor, rank: int) -> None:
        """Send x to one rank, which receives a tensor of its shape. Raises RankLost."""
        with self._losses():
            self._exchange.send([x.contiguous()], rank, 0).wait()

    def receive(self, like: Tensor, rank: int) -> Tensor:
        """Receive a tensor of the shape and type of `like` from one rank. Raises RankLost."""
        x = torch.empty_like(like)
        with self._losses():
            self._exchange.recv([x], rank, 0).wait()
        return x

    def share(self, x: Tensor, rank: int) -> Tensor:
        """Broadcast one rank's x to every rank; the others' x only give its shape. Raises RankLost."""
        x = x.contiguous()
        with self._losses():
            self._exchange.broadcast(x, rank).wait()
        return x

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.size} lost another rank: load the model again") from error


def _process_group(path: str, rank: int, size: int, device: torch.device) -> Any:
    # the classes exist only where torch was built with them, and their options have no public names
    backends: Any = dist
    store, timeout = backends.FileStore(path, size), timedelta(seconds=RENDEZVOUS_SECONDS)
    if device.type == "cuda":
        options = backends.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return backends.ProcessGroupNCCL(store, rank, size, options)
    options = backends.ProcessGroupGloo._Options()
    options._devices = [backends.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return backends.ProcessGroupGloo(store, rank, size, options)
