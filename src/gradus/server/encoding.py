"""Slow work on texts, for the event loop: long prompts to encode, conversations to render, grammars to compile.

One thread does it, because the tokenizer holds Python's lock most of the time. Each API key has a line of its own, and
the lines take turns: a key with many prompts delays another key by one of them. Work whose client has left is dropped
before it begins. The number of texts that wait is bounded, and so is their size.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gradus.errors import GradusError
from gradus.server.failures import RequestFailed, Unavailable
from gradus.server.measures import Counts, ServiceRate

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = asyncio.Future
"""Work that waits or runs. Cancel it when its client leaves."""

MOST_CHARACTERS = 64 << 20  # that wait together: tens of seconds of encoding, and at least as many bytes
ID_CHARACTERS = 8  # a token id counts as many
LONGEST_RETRY_S = 60.0


class EncodingQueue:
    """Runs jobs on one thread, in turns of their keys. For one event loop only.

    name: the thread's. most: the number of jobs that may wait. counts: where a refusal is counted.
    """

    def __init__(self, name: str, most: int, counts: Counts) -> None:
        self._most = most
        self._counts = counts
        self._worker = ThreadPoolExecutor(1, name)
        self._lines: dict[str, dict[Job[Any], Callable[[], Any]]] = {}  # by key; the first one is next
        self._busy = False
        self._jobs = self._characters = 0  # waiting or running
        self._rate = ServiceRate()

    def check_room(self, characters: int) -> None:
        """Raises Unavailable if the queue is full. An empty one takes a text of any length."""
        if self._jobs and (self._jobs >= self._most or self._characters + characters > MOST_CHARACTERS):
            self._counts.rejected += 1
            retry_after = math.ceil(min(max(self._rate.seconds_for(self._jobs), 1.0), LONGEST_RETRY_S))
            limit = f"at most {self._most}, of {MOST_CHARACTERS >> 20} Mi characters together"
            message = f"too many texts wait to be encoded ({limit}); try again in {retry_after} s"
            raise Unavailable(message, "overloaded", retry_after)

    def put(self, key: str, characters: int, work: Callable[[], T]) -> "Job[T]":
        """Queue work behind that of the same key. The result raises its GradusError, or RequestFailed for a bug."""
        job: Job[T] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, {})[job] = work
        self._jobs += 1
        self._characters += characters
        job.add_done_callback(partial(self._leave, key, characters))
        self._next()
        return job

    def close(self) -> None:
        """Drop what waits. The thread ends with its present work."""
        for line in self._lines.values():
            for job in line:
                job.cancel()
        self._lines.clear()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _leave(self, key: str, characters: int, job: "Job[Any]") -> None:
        """Forget a job that has ended, or that was cancelled with its client."""
        self._jobs -= 1
        self._characters -= characters
        line = self._lines.get(key, {})
        if line.pop(job, None) is not None and not line:
            del self._lines[key]
        if not job.cancelled():
            job.exception()  # read here, in case no client waits for it any more

    def _next(self) -> None:
        """Begin the first job of the next line, which then goes to the end."""
        while self._lines and not self._busy:
            key = next(iter(self._lines))
            line = self._lines.pop(key)
            job = next(iter(line))
            work = line.pop(job)
            if line:
                self._lines[key] = line
            if not job.done():
                self._busy = True
                running = asyncio.get_running_loop().run_in_executor(self._worker, guarded, work)
                running.add_done_callback(partial(self._ended, job, time.monotonic()))

    def _ended(self, job: "Job[Any]", began: float, running: "asyncio.Future[Any]") -> None:
        self._busy = False
        self._rate.record(time.monotonic() - began, 1)
        if running.cancelled():
            job.cancel()
        elif (error := running.exception()) is not None:
            if not job.done():
                job.set_exception(error)
        elif not job.done():
            job.set_result(running.result())
        self._next()


def weight(prompt: Sized) -> int:
    """Estimate a prompt's memory, in characters: each token id of a list is an object."""
    return len(prompt) * (ID_CHARACTERS if isinstance(prompt, list) else 1)


def guarded(work: Callable[[], T]) -> T:
    """Do work, and turn a bug into a RequestFailed, with details only in the log. Bugs of libraries in Rust are no
    Exceptions."""
    try:
        return work()
    except (GradusError, KeyboardInterrupt):
        raise
    except BaseException as error:
        log.exception("a prompt could not be encoded")
        raise RequestFailed() from error
