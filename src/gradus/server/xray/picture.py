"""The newest state of a watched engine, put together from its messages, and its last steps. Numbers alone.

A picture is what a watcher who comes now has to know; a change is what one has to know who had the picture before.
"""

import base64
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradus.cache.inspection import NodeSize, PageState, States, apply_changes
from gradus.server.engine.messages import EVENT, QUEUED, ROW, STEP, Watched

KEPT_STEPS = 512
KEPT_EVENTS = 4096
STEP_TIMES = slice(1, 7)  # in a step: microseconds


class Waiting(NamedTuple):
    """A waiting sample: its wait in milliseconds, and its priority."""

    handle: int
    waited_ms: int
    priority: int


class Picture:
    """The state of one engine since its watchers' first message.

    pages: the state of each, from page 1 on. handles: of the running samples, in the order of `rows` (see ROW).
    waiting: how many samples wait; queue: the first of them. tree: the largest nodes; None without an index.
    steps, events: the newest ones (see STEP and EVENT). began: when the first message was made, in microseconds of
    `time.monotonic`; events for watchers count from then.
    """

    def __init__(self) -> None:
        self.pages: States = np.empty(0, np.uint8)
        self.page_size = 0
        self.handles: list[int] = []
        self.rows: list[list[int]] = []
        self.waiting = 0
        self.queue: list[Waiting] = []
        self.tree: list[list[int]] | None = None
        self.steps: deque[list[int]] = deque(maxlen=KEPT_STEPS)
        self.events: deque[list[int]] = deque(maxlen=KEPT_EVENTS)
        self.began = self.time = 0
        self._change: dict[str, Any] = {}

    def read(self, message: Watched) -> None:
        """Bring the picture up to date. Raises ValueError for columns of a wrong length."""
        self.began, self.time = self.began or message.time, message.time
        steps = columns(message.steps, np.int64, len(STEP)).tolist()
        self.steps += steps
        self.events += columns(message.events, np.int64, len(EVENT)).tolist()
        self.handles = np.frombuffer(message.handles, np.int64).tolist()
        self.rows = columns(message.rows, np.int32, len(ROW)).tolist()
        self.waiting = message.waiting
        queue = columns(message.queue, np.int64, len(QUEUED)).tolist()
        self.queue = [Waiting(handle, waited // 1000, priority) for handle, waited, priority in queue]
        self._change = {"steps": list(map(self._shown, steps))}
        self._read_pages(message)
        if message.tree is not None:
            self.tree = columns(message.tree, np.int32, len(NodeSize._fields)).tolist()
            self._change["tree"] = self.tree

    def _read_pages(self, message: Watched) -> None:
        self.page_size = message.page_size
        if message.whole:
            self.pages = np.frombuffer(message.pages, np.uint8).copy()
            self._change["pages"] = self._all_pages()
        elif message.pages:
            runs = columns(message.pages, np.int32, 3)
            apply_changes(self.pages, runs)
            self._change["pages"] = {"runs": runs.ravel().tolist()}

    def _all_pages(self) -> dict[str, Any]:
        states = base64.b64encode(self.pages.tobytes()).decode()
        return {"count": len(self.pages), "size": self.page_size, "states": states}

    def _shown(self, step: list[int]) -> list[int]:
        """A step with times that count from the first message."""
        return [*step[:1], *(time - self.began for time in step[STEP_TIMES]), *step[STEP_TIMES.stop :]]

    def change(self) -> dict[str, Any]:
        """Return the fields that the newest message has changed."""
        return self._now() | self._change

    def whole(self) -> dict[str, Any]:
        """Return all fields."""
        found = self._now() | {"steps": list(map(self._shown, self.steps)), "tree": self.tree}
        return found | {"pages": self._all_pages()} if len(self.pages) else found

    def _now(self) -> dict[str, Any]:
        counts = np.bincount(self.pages, minlength=len(PageState)).tolist() if len(self.pages) else []
        return {
            "time": self.time - self.began,
            "counts": counts,
            "rows": self.rows,
            "waiting": self.waiting,
            "queue": [[waited, priority] for _, waited, priority in self.queue],
        }


def columns(content: bytes, kind: Any, width: int) -> NDArray[Any]:
    """Read a table of `width` columns. Raises ValueError for other bytes."""
    return np.frombuffer(content, kind).reshape(-1, width)
