"""The ranks' exchange of tensors. Every result has the same bits on every rank.

An all-reduce may add in any order. On CPUs that order may differ from rank to rank, so `Group` gathers the summands and
adds them in rank order. NCCL adds each number up on one rank, which sends it to the others. Activations are then equal
on every rank, and so are the tokens that each rank samples for itself.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
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
COMPILING_SECONDS = 600
"""The same on GPUs, whose ranks compile kernels between exchanges."""
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

    Keep it until a GPU has finished all exchanges: with the last reference, NCCL stops waiting for the other ranks, and
    what was under way has results without their part.
    """

    def __init__(self, path: str, rank: int, size: int, device: torch.device, check: Check = nothing_known) -> None:
        self.path, self.rank, self.size, self.device = path, rank, size, device
        self._exchange, self._aborted = _process_group(path, rank, size, device, check), False

    def gather(self, x: Tensor) -> Tensor:
        """Collect every rank's x, all of one shape: [size, *x.shape], in rank order. Raises RankLost."""
        if self.size == 1:
            return x[None]
        parts = x.new_empty((self.size, *x.shape))
        with self.losses():
            if x.is_cuda:
                _done(self._exchange._allgather_base(parts, x.contiguous(), _in_stream("AllgatherOptions")))
            else:
                self._exchange.allgather([list(parts.unbind())], [x.contiguous()]).wait()
        return parts

    def sum(self, x: Tensor) -> Tensor:
        """Add every rank's x, which may be overwritten. Raises RankLost.

        CPUs add in rank order and in float32, and round once.
        """
        if self.size == 1:
            return x
        if x.is_cuda:
            x = x.contiguous()
            with self.losses():
                _done(self._exchange.allreduce([x], _in_stream("AllreduceOptions")))
            return x
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

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """Return rank 0's numbers on every rank, where measurements decide what all must do. Raises RankLost."""
        return self.share(torch.tensor(numbers, dtype=torch.float64, device=self.device), 0).tolist()

    def abort(self) -> None:
        """End every exchange, those that wait for a lost rank too. None works afterwards, and GPU memory is given back.

        NCCL waits here until the CUDA graphs with its collectives are gone.
        """
        if self.device.type == "cuda" and not self._aborted:
            self._aborted = True
            self._exchange.abort()

    @contextmanager
    def losses(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.size} lost another rank: load the model again") from error


def _in_stream(kind: str) -> Any:
    """Options with which a collective of NCCL runs in the current stream, and not in one of NCCL's own."""
    from torch._C import _distributed_c10d

    options = getattr(_distributed_c10d, kind)()
    options.asyncOp = False
    return options


def _done(work: Any) -> None:
    if work is not None:  # None for a collective in the stream
        work.wait()


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
        options._timeout = timedelta(seconds=COMPILING_SECONDS)
        with _unwatched():
            return backends.ProcessGroupNCCL(store, rank, size, options)
    options = backends.ProcessGroupGloo._Options()
    options._devices = [backends.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return backends.ProcessGroupGloo(store, rank, size, options)


@contextmanager
def _unwatched() -> Iterator[None]:
    """Keep the monitor of a new group of NCCL from its store.

    It would look there every second whether another rank asks for a dump. The store is a file that the ranks remove at
    the end, and torch waits for a missing file for minutes: closing an engine would wait for the monitor.
    """
    name = "TORCH_NCCL_DUMP_ON_TIMEOUT"  # read once, by the constructor
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
