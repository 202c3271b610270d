"""Threads that share a step's work, such that none ever waits for a thread that is not running.

A step is a sequence of stages, and a stage is a number of chunks. A free thread takes the next chunk of the current
stage; the thread that finishes a stage's last chunk opens the next stage. The caller is one of the workers and can do
all the work: if the others sleep, are late, share their core with another program or did not survive a fork, the step
is only slower. A thread waits only while another is computing.

One word describes the next piece of work: the number of the stage, counted over all steps, and the next chunk. Threads
take it by compare and swap, so a thread that slept through a step cannot take work that is already done.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.machine import FLAGS, add, exchange_if, load, pause, sleep, store

# Words shared by threads, each in a cache line of its own. FIRST is the number that stage 0 has, or would have: a step
# may begin with a later stage.
WORK, DONE, FIRST, END = 0, 8, 16, 24
PATIENCE = END + 1  # changes only as a team ends
WORDS = 32
CHUNKS = 20  # bits of the word WORK that count chunks

NOTHING = -1  # no work at present
OVER = -2  # the step is over

# Pauses until a waiting thread gives up its core.
WITHIN_STEP = 4_000  # some tens of microseconds: as long as a stage takes
BETWEEN_STEPS = 60_000  # a millisecond, in which a token is chosen: a thread that slept would be late for the next step
LEAVE = BETWEEN_STEPS + 400  # turns, the last ones of 50 µs, until a worker leaves its loop because the engine is idle


@njit(**FLAGS)
def open_step(words: int, first: int, stages: int) -> None:
    """Give the threads `stages` stages to do, beginning with stage `first`. words: the address of int64 [WORDS]."""
    number = load(words, END)
    store(words, FIRST, number - first)
    store(words, END, number + stages)


@njit(**FLAGS)
def take(words: int, chunks: Any) -> tuple[int, int]:
    """Take the next piece of work: a stage and a chunk, or NOTHING, or OVER. chunks: int64, the count of each stage."""
    word = load(words, WORK)
    number = word >> CHUNKS
    if number >= load(words, END):
        return OVER, 0
    stage, chunk = number - load(words, FIRST), word & ((1 << CHUNKS) - 1)
    if stage < 0 or chunk >= chunks[stage] or not exchange_if(words, WORK, word, word + 1):
        return NOTHING, 0
    return stage, chunk


@njit(**FLAGS)
def finish(words: int, chunks: int) -> None:
    """Count a chunk as done; the last one of a stage opens the next stage."""
    if add(words, DONE, 1) + 1 == chunks:
        store(words, DONE, 0)
        store(words, WORK, ((load(words, WORK) >> CHUNKS) + 1) << CHUNKS)


@njit(**FLAGS)
def wait(turns: int, spins: int) -> int:
    """Wait for one turn, after `turns` others: the first `spins` turns spin, later ones sleep. Returns turns + 1."""
    if turns < spins:
        pause()
    else:
        sleep(50)
    return turns + 1


class Team:
    """The calling thread, and worker threads that live as long as the team.

    work(thread): takes part in the open step, then waits for another for PATIENCE turns; thread 0, the caller, does not
    wait. A thread that waits keeps `work` alive, so it must not refer to the model, only to the step's own data.
    words: int64 [WORDS], shared by the threads.
    """

    def __init__(self, threads: int, work: Callable[[int], None], words: NDArray[np.int64]) -> None:
        self.threads, self.work, self.words = threads, work, words
        self._start()

    def run(self) -> None:
        """Run the open step, and return when it is done."""
        if self.process != os.getpid():
            self._start()  # after a fork the others are gone
        for thread, awake in enumerate(self.awake):
            if not awake:
                self.awake[thread] = True
                self.calls[thread].release()
        self.work(0)

    def close(self) -> None:
        """End the threads. Later steps still run, on the caller alone."""
        self.awake = [True] * self.threads
        self.words[PATIENCE] = 0
        for call in self.calls:
            call.release()
        for each in self.others:
            if each is not threading.current_thread():  # a garbage collection may call this in any thread
                each.join()

    def _start(self) -> None:
        # A fork may have interrupted a step, whose stages will never end: number the next step's stages after it.
        self.words[WORK], self.words[DONE], self.words[PATIENCE] = self.words[END] << CHUNKS, 0, LEAVE
        self.process = os.getpid()
        self.awake = [True] + [False] * (self.threads - 1)
        self.calls = [threading.Semaphore(0) for _ in range(self.threads)]
        self.others = [
            threading.Thread(
                target=self._serve,
                args=(thread, self.calls[thread], self.awake),
                name=f"gradus-cpu-{thread}",
                daemon=True,
            )
            for thread in range(1, self.threads)
        ]
        for each in self.others:
            each.start()

    def _serve(self, thread: int, call: threading.Semaphore, awake: list[bool]) -> None:
        while call.acquire() and awake is self.awake:
            self.work(thread)
            awake[thread] = False
