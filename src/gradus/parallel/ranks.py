"""Rank 0's side: starts the other ranks, sends them plans, and notices when one is lost.

A rank that dies closes its stream. One that hangs sends no more heartbeats. In both cases rank 0 kills all others:
their connections break, which ends every exchange that waits for them.
"""

import json
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradus.device import program
from gradus.engine.engine import Runner
from gradus.engine.plan import Plan, Result, Sampled
from gradus.engine.wire import pack, unpack_sampled
from gradus.execution.passes import RunModel
from gradus.parallel.group import RankLost
from gradus.parallel.messages import FAILED, OPENED, READY, SAMPLED, Channel

if TYPE_CHECKING:  # Triton is not everywhere
    from gradus.parallel.exchange import Exchange

SIGN_OF_LIFE_S = 0.5
SILENCE_S = 4.0
"""Kill a rank that has sent no heartbeat for this long."""
GOODBYE_S = 5.0


class Ranks:
    """The other ranks, as processes on this machine. They end with this object, or with this process.

    module: the program of a rank, started with a stream's descriptor. job: the model to load, as JSON; each rank's copy
    adds its own `rank`, and the group's `size` and `path`.

    reports: what each rank added to OPENED. on_loss: called once, in a thread of its own, when a rank is lost. It may
    wait for what the thread that runs steps holds, such as CUDA graphs.
    """

    on_loss: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, size: int, module: str, job: Mapping[str, Any]) -> None:
        self.size = size
        self._folder = tempfile.mkdtemp(prefix="gradus-ranks-")  # mode 0700
        self.path = str(Path(self._folder) / "rendezvous")
        self._lost: str | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        self._sending = threading.Lock()  # plans, and constraints from a thread that compiles them
        self._closed, self._losing = threading.Event(), threading.Lock()
        self._sampled: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for rank in range(1, size):
            self._start(module, {**job, "rank": rank, "size": size, "path": self.path})
        self._heard = [time.monotonic()] * len(self._channels)
        self.reports = [b""] * len(self._channels)
        self._opened = [threading.Event() for _ in self._channels]
        self._ready = [threading.Event() for _ in self._channels]
        self._threads = [threading.Thread(target=self._listen, args=(index,), daemon=True) for index in range(size - 1)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()

    def _start(self, module: str, job: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            # rank 0 alone decides what a Ctrl-C ends
            process = program.start(module, str(descriptor), blocked={signal.SIGINT}, descriptors=[descriptor])
            self._processes.append(process)
        channel = Channel(ours)
        self._channels.append(channel)
        channel.send(json.dumps(job).encode())

    def wait_until_opened(self) -> None:
        """Wait until every rank has found the model, before any rank waits for all of them. Raises RankLost if one
        could not."""
        self._wait(self._opened)

    def wait_until_ready(self) -> None:
        """Wait until every rank has loaded its part. Raises RankLost if one could not."""
        self._wait(self._ready)

    def _wait(self, events: Iterable[threading.Event]) -> None:
        for event in events:
            while not event.wait(0.1):
                self.check()
        self.check()

    def send(self, plan: Plan) -> None:
        """Send a step's plan to all ranks. Raises RankLost."""
        self.tell(pack(plan))

    def tell(self, message: bytes) -> None:
        """Send a message to all ranks. Raises RankLost."""
        self.check()
        for index, channel in enumerate(self._channels):
            try:
                with self._sending:
                    channel.send(message)
            except OSError:
                self._lose(index, "has died")
                self.check()

    def sampled(self) -> Sampled:
        """Wait for the next step's result from the last stage of a pipeline. Raises RankLost."""
        while True:
            try:
                return unpack_sampled(self._sampled.get(timeout=0.1))
            except queue.Empty:
                self.check()

    def check(self) -> None:
        """Raise RankLost if a rank is gone."""
        if self._lost is not None:
            raise RankLost(self._lost)

    def close(self) -> None:
        """End the other ranks, and remove their folder."""
        if self._closed.is_set():
            return
        self._closed.set()
        for channel in self._channels:
            channel.close()
        deadline = time.monotonic() + GOODBYE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def join(self) -> None:
        """Wait for this object's threads, after `close`: one that still ends exchanges when the interpreter does would
        end the process with an error."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(GOODBYE_S)

    # -- threads -------------------------------------------------------------------------------------------------------

    def _listen(self, index: int) -> None:
        while (message := self._channels[index].receive()) is not None:
            self._heard[index] = time.monotonic()
            if message[:1] == OPENED:
                self.reports[index] = message[1:]
                self._opened[index].set()
            elif message[:1] == READY:
                self._ready[index].set()
            elif message[:1] == SAMPLED:
                self._sampled.put(message[1:])
            elif message[:1] == FAILED:
                self._lose(index, f"failed: {message[1:].decode('utf-8', 'replace')}")
        self._lose(index, "has died")

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._closed.wait(SIGN_OF_LIFE_S):
            now = time.monotonic()
            if now - looked > SILENCE_S / 2:  # this process was stopped, by Ctrl-Z for instance, and heard nothing
                self._heard = [now] * len(self._heard)
            looked = now
            for index, ready in enumerate(self._ready):
                if ready.is_set() and time.monotonic() - self._heard[index] > SILENCE_S:
                    self._lose(index, f"has shown no sign of life for {SILENCE_S:g} s")

    def _lose(self, index: int, what: str) -> None:
        """Record the first loss, and kill all ranks: none can go on, and exchanges that wait for them must end."""
        with self._losing:  # several threads may notice at once
            if self._closed.is_set() or self._lost is not None:
                return
            self._lost = f"rank {index + 1} of {self.size} {what}: load the model again"
        for process in self._processes:
            process.kill()
        ending = threading.Thread(target=self.on_loss, daemon=True)
        self._threads.append(ending)
        ending.start()


class RankZero(NamedTuple):
    """The means by which rank 0's runner works in step with the others.

    run_model: runs its part on torch. abort: ends all its exchanges. exchange: what its part exchanges by on a GPU's
    kernels.
    """

    ranks: Ranks
    run_model: RunModel
    abort: Callable[[], None]
    exchange: "Exchange | None" = None

    @property
    def stopped(self) -> bool:
        """Whether kernels have given up waiting for a rank."""
        return self.exchange is not None and self.exchange.aborted


@dataclass(slots=True)
class SharedResult:
    """A step that all ranks run: see `gradus.engine.plan.Result`."""

    rows: int
    get: Callable[[], Sampled]


class ParallelRunner:
    """Runs every plan on all ranks.

    Rank 0's result is every rank's result, unless it is `far`: then rank 0 is in the first stage of a pipeline, and the
    last one samples. Waits until the other ranks have their runners. drop_graphs: called at the end, before the
    exchange is ended.
    """

    def __init__(
        self, runner: Runner, zero: RankZero, drop_graphs: Callable[[], None] = lambda: None, *, far: bool = False
    ) -> None:
        self.runner, self.ranks, self.zero, self.far = runner, zero.ranks, zero, far
        self.ranks.wait_until_ready()
        weakref.finalize(self, _end, zero, drop_graphs)

    def run(self, plan: Plan) -> Result:
        """Run the plan. Raises RankLost, naming the rank and the reason, if one is gone."""
        self.ranks.send(plan)
        try:
            result = self.runner.run(plan)
        except RankLost:
            self._blame()
            raise
        # results are asked for in the order of their plans
        return SharedResult(result.rows, self.ranks.sampled if self.far else partial(self._checked, result))

    def _checked(self, result: Result) -> Sampled:
        """Wait for the tokens of a step on all ranks. Raises RankLost if one of them was lost meanwhile: the tokens are
        then worthless."""
        try:
            sampled = result.get()
        except RuntimeError:  # a GPU's kernel that was ended
            self._blame()
            raise
        self.ranks.check()
        if self.zero.stopped:
            self._blame()
            raise RankLost(f"the {self.ranks.size} ranks have lost step: load the model again")
        return sampled

    def _blame(self) -> None:
        """Raise RankLost if a rank is gone, as it is after a failed exchange."""
        time.sleep(SIGN_OF_LIFE_S)  # the exchange often fails before the loss is recorded
        self.ranks.check()


def _end(zero: RankZero, drop_graphs: Callable[[], None]) -> None:
    """End the other ranks, then the exchange with them: NCCL waits until no graph has a collective of its own."""
    zero.ranks.close()
    drop_graphs()
    zero.abort()
    zero.ranks.join()
