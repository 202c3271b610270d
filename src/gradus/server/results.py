"""Results as they arrive, or the error that ended them.

A Stream lives on the event loop: the client fills it from the engine's reports, and the request's handler empties it.
"""

import asyncio
from collections.abc import Callable, Sequence

from gradus.engine.request import Request
from gradus.errors import CapacityError, GradusError
from gradus.text.completion import Delta


class Unavailable(CapacityError):
    """The server accepts no requests now. kind: "overloaded", or the server's state; retry_after: in whole seconds."""

    def __init__(self, message: str, kind: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class RequestTimeout(GradusError):
    """The request did not end within its timeout."""


class DeadlineMissed(GradusError):
    """The request was ended because it could no longer meet its deadline."""


class RequestFailed(GradusError):
    """A bug of ours ended this one request. Details are only in the log, because clients are not trusted."""

    def __init__(self) -> None:
        super().__init__("the engine could not finish this request; the server's log says why")


class ClientGone(GradusError):
    """The client has left: the result will not be read."""


class Stream:
    """The results of one client's requests as they arrive: of one request, or of several that one body makes.

    ids: the requests', in the engine. samples: of all of them. Cancel the stream, or read it until `done`: nothing
    else ends its requests in the engine.
    requests: as the engine has accepted them; complete once `accepted` returns.
    """

    def __init__(self, ids: Sequence[str], samples: int, forget: "Callable[[Stream, Exception], None]") -> None:
        self.ids = tuple(ids)
        self.samples = samples
        self.requests: dict[str, Request] = {}
        self.done = False  # every sample's last delta has been received
        self.unfinished = samples
        self._forget = forget
        self._deltas: list[Delta] = []
        self._error: Exception | None = None
        self._unaccepted = set(ids)
        self._news = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None

    async def accepted(self) -> None:
        """Wait until the engine has checked all requests. Raises RequestError, or any error that `receive` raises."""
        while self._unaccepted and self._error is None:
            await self._wait(None)
        if self._error is not None:
            raise self._error

    async def receive(self, timeout: float | None = None) -> list[Delta]:
        """Return the deltas since the last call, or wait for some; [] if none came within `timeout` seconds.

        A sample's last delta carries its Completion. Raises Unavailable (the engine failed), RequestTimeout (the engine
        did not end it in time), RequestFailed, or ClientGone (after `cancel`).
        """
        if not self._deltas and self._error is None:
            await self._wait(timeout)
        if self._error is not None:
            raise self._error
        deltas, self._deltas = self._deltas, []
        self.done = self.unfinished == 0
        return deltas

    async def _wait(self, timeout: float | None) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            pass

    def cancel(self) -> None:
        """Cancel the requests. May be called at any time, and more than once."""
        self._forget(self, ClientGone("the request was cancelled"))

    # -- called by the client -----------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if nothing more will come."""
        return self.unfinished == 0 or self._error is not None

    @property
    def buffered(self) -> int:
        return len(self._deltas)

    def accept(self, request_id: str) -> None:
        self._unaccepted.discard(request_id)
        if not self._unaccepted:
            self._news.set()

    def push(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.unfinished -= delta.completion is not None
        self._news.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._deltas.clear()
        self._news.set()
