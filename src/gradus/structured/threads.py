"""Rows of legal tokens for many answers at once, on the library's threads, while the device runs the model.

The library's threads work without Python's lock. Only the call that hands them a step's rows needs a Python thread to
wait in; everything before and after it is done by the caller, for all rows at once where possible: a thread that needs
Python's lock in between would wait until the caller has nothing else to do.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Semaphore
from typing import Any

import numpy as np

from gradus.structured.library import Failed, guarded, llguidance
from gradus.structured.matcher import Matcher
from gradus.structured.vocabulary import Row

INLINE_ROWS = 4  # as many are filled in place: handing them over costs as much CPU time as eight rows
MOST_THREADS = 8


@dataclass(slots=True)
class Job:
    """The rows of one answer: row, and one more for each draft."""

    matcher: Matcher
    row: int
    drafts: Sequence[int] = ()

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + 1 + len(self.drafts))


class MaskThreads:
    """Fills rows in the background. Makes no thread before the first job that needs one.

    count: the library's threads; None is half of the processors, at most eight.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count or max(1, min(MOST_THREADS, (os.cpu_count() or 2) // 2))
        self._python: ThreadPoolExecutor | None = None
        self._made: Any = None
        self._raw = np.zeros((0, 0), np.int32)
        # what is being filled: its jobs, the rows, and the library's rows
        self._under_way: tuple[Future[None], Sequence[Job], Row, Row] | None = None

    @property
    def _library(self) -> Any:
        if self._made is None:
            self._made = llguidance().LLExecutor(self._count)
        return self._made

    def accept(self, moves: Sequence[tuple[Matcher, Sequence[int]]]) -> None:
        """Advance answers by their tokens. A matcher that refuses a token gets its fault."""
        if len(moves) <= INLINE_ROWS:
            for matcher, tokens in moves:
                matcher.accept(tokens)
            return
        together = list[tuple[Matcher, int]]()
        for matcher, tokens in moves:
            if len(tokens) == 1 and matcher.takes(tokens[0]):
                together.append((matcher, tokens[0]))
            else:
                matcher.accept(tokens)
        try:
            with guarded():
                taken = self._library.consume_token_par([(matcher.inner, token) for matcher, token in together])
        except Failed as error:  # it is unknown which of them advanced
            taken = [False] * len(together)
            for matcher, _ in together:
                matcher.fault = matcher.fault or str(error)
        for (matcher, token), done in zip(together, taken, strict=True):
            if not done:
                matcher.refuse(token)

    def start(self, jobs: Sequence[Job], rows: Row) -> None:
        """Begin to fill the jobs' rows, and return. Until `wait`, neither the rows nor the matchers may be touched.

        rows: int32 [at least every row named, row_words(vocab_size)]. Rows that no job names stay as they are. A
        matcher has at most one job. A matcher that fails gets its fault and rows of zeros; the others are filled.
        """
        self.wait()
        if sum(1 + len(job.drafts) for job in jobs) <= INLINE_ROWS:
            for job in jobs:
                job.matcher.fill_drafts(rows[job.rows], job.drafts)
            return
        jobs = [job for job in jobs if self._is_open(job, rows)]
        if not jobs:
            return
        words, calls = jobs[0].matcher.raw_words, self._calls(jobs)
        in_place = words == rows.shape[1] and _adjacent(jobs)
        raw = rows if in_place else self._scratch(len(rows), words)
        if self._python is None:
            self._python = ThreadPoolExecutor(1, thread_name_prefix="gradus-masks")
        begun = Semaphore(0)
        self._under_way = self._python.submit(self._compute, calls, raw, begun), jobs, rows, raw
        begun.acquire()  # gives Python's lock to the other thread, until it leaves Python

    def wait(self) -> None:
        """Return when every row that was begun is filled."""
        if self._under_way is not None:
            (future, jobs, rows, raw), self._under_way = self._under_way, None
            try:
                future.result()
            except Failed:  # one of them broke the whole batch: each by itself shows which
                for job in jobs:
                    job.matcher.fill_drafts(rows[job.rows], job.drafts)
            else:
                _settle(jobs, rows, raw)

    def close(self) -> None:
        """Finish what is under way, and end the threads. A later `start` makes new ones."""
        self.wait()
        if self._python is not None:
            self._python.shutdown()
        self._python = self._made = None

    def _is_open(self, job: Job, rows: Row) -> bool:
        """Fill the rows of an answer that has ended or failed at once: the library knows nothing of that."""
        if job.matcher.in_threads(job.drafts):
            return True
        job.matcher.fill_drafts(rows[job.rows], job.drafts)
        return False

    def _calls(self, jobs: Sequence[Job]) -> tuple[list[tuple[Any, int]], list[tuple[Any, int, list[int]]]]:
        """Sort what the library is to fill: rows without drafts, and with."""
        plain, drafted = [], []
        for job in jobs:
            known = job.matcher.known(job.drafts) if job.drafts else ()
            if known:
                drafted.append((job.matcher.inner, job.row, list(known)))
            else:
                plain.append((job.matcher.inner, job.row))
        return plain, drafted

    def _compute(self, calls: tuple[list[Any], list[Any]], raw: Row, begun: Semaphore) -> None:
        plain, drafted = calls
        try:
            with guarded():
                library, place = self._library, (raw.ctypes.data, raw.strides[0], len(raw))
                begun.release()
                if plain:
                    library.unsafe_compute_mask_ptr(plain, *place)
                if drafted:
                    library.unsafe_compute_mask_ptr_with_draft_token(drafted, *place)
        finally:
            begun.release()  # also if it never began

    def _scratch(self, rows: int, words: int) -> Row:
        if self._raw.shape[0] < rows or self._raw.shape[1] != words:
            self._raw = np.zeros((rows, words), np.int32)
        return self._raw[:rows]


def _settle(jobs: Sequence[Job], rows: Row, raw: Row) -> None:
    """Turn the library's rows into the answers'."""
    if _adjacent(jobs):
        here = slice(jobs[0].row, jobs[-1].row + 1)
        mine = rows[here]
        Matcher.settle_all([job.matcher for job in jobs], mine, mine if raw is rows else raw[here])
        return
    for job in jobs:
        job.matcher.settle(rows[job.rows], raw[job.rows], job.drafts)


def _adjacent(jobs: Sequence[Job]) -> bool:
    """Whether the jobs have one row each, one after the other."""
    return jobs[-1].row - jobs[0].row + 1 == len(jobs) and not any(job.drafts for job in jobs)
