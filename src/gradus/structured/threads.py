"""Rows of legal tokens for many answers at once, on threads of their own, while the device runs the model.

One Python thread hands a whole step's rows to the library's own threads, which work without Python's lock. A Python
thread per row would compete for that lock, at every row, with the thread that launches kernels.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.structured.library import Failed, guarded, llguidance
from gradus.structured.matcher import Matcher
from gradus.structured.vocabulary import Row

INLINE_ROWS = 4  # as many are filled in place: handing them over costs as much CPU time as eight rows
MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
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
        self._library: Any = None
        self._raw = np.zeros((0, 0), np.int32)
        self._under_way: Future[None] | None = None

    def start(self, jobs: Sequence[Job], rows: Row) -> None:
        """Begin to fill the jobs' rows, and return. Until `wait`, neither the rows nor the matchers may be touched.

        rows: int32 [at least every row named, ceil(vocab_size / 32)]. Rows that no job names stay as they are. A
        matcher has at most one job. A matcher that fails gets its fault and rows of zeros; the others are filled.
        """
        self.wait()
        if sum(1 + len(job.drafts) for job in jobs) <= INLINE_ROWS:
            for job in jobs:
                job.matcher.fill_drafts(rows[job.rows], job.drafts)
            return
        if self._python is None:
            self._python = ThreadPoolExecutor(1, thread_name_prefix="gradus-masks")
        self._under_way = self._python.submit(self._fill, jobs, rows)

    def wait(self) -> None:
        """Return when every row that was begun is filled."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def close(self) -> None:
        """Finish what is under way, and end the threads. A later `start` makes new ones."""
        self.wait()
        if self._python is not None:
            self._python.shutdown()
        self._python = self._library = None

    def _fill(self, jobs: Sequence[Job], rows: Row) -> None:
        jobs = [job for job in jobs if self._is_open(job, rows)]
        if not jobs:
            return
        raw = self._scratch(len(rows), jobs[0].matcher.raw_words)
        try:
            with guarded():
                self._compute(jobs, raw)
        except Failed:  # one of them broke the whole batch: each by itself shows which
            for job in jobs:
                job.matcher.fill_drafts(rows[job.rows], job.drafts)
            return
        for job in jobs:
            job.matcher.settle(rows[job.rows], raw[job.rows], job.drafts)

    def _is_open(self, job: Job, rows: Row) -> bool:
        """Fill the rows of an answer that has ended or failed at once: the library knows nothing of that."""
        if job.matcher.asks_library:
            return True
        job.matcher.fill_drafts(rows[job.rows], job.drafts)
        return False

    def _compute(self, jobs: Sequence[Job], raw: Row) -> None:
        if self._library is None:
            self._library = llguidance().LLExecutor(self._count)
        plain, drafted = [], []
        for job in jobs:
            known = job.matcher.known(job.drafts)
            if known:
                drafted.append((job.matcher.inner, job.row, known))
            else:
                plain.append((job.matcher.inner, job.row))
        place = (raw.ctypes.data, raw.strides[0], len(raw))
        if plain:
            self._library.unsafe_compute_mask_ptr(plain, *place)
        if drafted:
            self._library.unsafe_compute_mask_ptr_with_draft_token(drafted, *place)

    def _scratch(self, rows: int, words: int) -> Row:
        if self._raw.shape[0] < rows or self._raw.shape[1] != words:
            self._raw = np.zeros((rows, words), np.int32)
        else:
            self._raw[:rows] = 0
        return self._raw[:rows]
