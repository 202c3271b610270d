"""Progress of a quiet build, a line every few seconds: `make book` takes minutes, and Sphinx says all or nothing."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

EVERY = 4.0
"""Seconds between two lines."""


@dataclass(slots=True)
class Progress:
    """Lines on standard error, no more than one in EVERY seconds. clock: seconds, from any beginning."""

    clock: Callable[[], float] = time.monotonic
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.clock()

    def say(self, what: str) -> None:
        """Say it, or leave it out if the last line is fresh."""
        now = self.clock()
        if now - self.last >= EVERY:
            self.last = now
            print(f"… still building the book: {what}", file=sys.stderr, flush=True)


progress = Progress()


def setup(app: "Sphinx") -> None:
    """Report how many pages have been read and written, where Sphinx is quiet."""
    if app.quiet:
        app.connect("source-read", lambda app, page, text: _count(app, page, "read"))
        app.connect("html-page-context", lambda app, page, *_: _count(app, page, "written"))


def _count(app: "Sphinx", page: str, done: str) -> None:
    names = sorted(app.env.found_docs)
    if page in names:
        progress.say(f"{names.index(page) + 1} of {len(names)} pages {done}")
    else:
        progress.say(page)  # a file's page
