"""Requests of a batch, several at a time, each until it has a final answer.

Only final answers are written, in the order in which they come: a status other than 429 and 503 is one. Where the
server has no room, or the connection fails, the request is sent again, after the time that the server names or after
growing pauses. If that does not help, the run stops, and the requests without a line are left for the next run.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, BinaryIO

from gradus.load.asking.target import Target
from gradus.load.batch.lines import Asked, Invalid, answered, refused

AGAIN = (429, 503)
LONGEST_PAUSE_S = 60.0
MOST_ANSWER = 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Rules:
    """at_once: requests under way. tries: of each request. timeout: seconds for an answer. pause: seconds before the
    second try; it doubles with each. model: the name for requests that name none."""

    at_once: int = 64
    tries: int = 10
    timeout: float = 3600.0
    pause: float = 0.5
    model: str | None = None


@dataclass(slots=True)
class Counts:
    """succeeded: status 200. failed: any other final status. invalid: lines that are no request. left: without a line.

    why: of the first request that was given up.
    """

    succeeded: int = 0
    failed: int = 0
    invalid: int = 0
    left: int = 0
    why: str = ""


class NoRoom(Exception):
    """The server asks to come again. seconds: when, 0 if it does not say."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass
class Sending:
    """A batch on its way. lines: those without an answer. progress: called after each line that gets one."""

    target: Target
    lines: Iterator[Asked | Invalid]
    out: BinaryIO
    rules: Rules
    progress: Callable[[], None] = lambda: None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._reading, self._writing, self._stopping = threading.Lock(), threading.Lock(), threading.Event()
        self._broken: list[BaseException] = []

    def run(self) -> Counts:
        """Send everything. Raises what reading or writing the files raises."""
        threads = [threading.Thread(target=self._user, daemon=True) for _ in range(self.rules.at_once)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:  # Ctrl-C too: answers that are on their way are left for the next run
            self._stopping.set()
        if self._broken:
            raise self._broken[0]
        self.counts.left += sum(isinstance(line, Asked) for line in self.lines)
        return self.counts

    def _user(self) -> None:
        connection = _Connection(self.target, self.rules.timeout)
        try:
            while (line := self._next()) is not None:
                if isinstance(line, Invalid):
                    self._write(refused(line), "invalid")
                else:
                    self._answer(connection, line)
        except Exception as error:  # of a file: a full disk ends the run, and no thread silently
            self._broken.append(error)
            self._stopping.set()
        finally:
            connection.close()

    def _next(self) -> Asked | Invalid | None:
        with self._reading:
            return None if self._stopping.is_set() else next(self.lines, None)

    def _write(self, line: bytes, count: str) -> None:
        with self._writing:
            if self._stopping.is_set() and self._broken:
                return
            self.out.write(line)
            self.out.flush()
            setattr(self.counts, count, getattr(self.counts, count) + 1)
            self.progress()

    def _answer(self, connection: "_Connection", asked: Asked) -> None:
        named = {"model": self.rules.model} if self.rules.model and asked.path.startswith("/v1/") else {}
        body = named | asked.body
        content, pause = json.dumps(body).encode(), self.rules.pause
        for attempt in range(1, self.rules.tries + 1):
            try:
                status, request_id, found = connection.ask(asked.path, content)
            except (OSError, HTTPException, NoRoom) as error:
                why = f"{asked.custom_id}: {error or type(error).__name__}"
                wanted = error.seconds if isinstance(error, NoRoom) else 0.0
                if attempt == self.rules.tries or self._stopping.wait(min(wanted or _spread(pause), LONGEST_PAUSE_S)):
                    return self._give_up(why)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                return self._write(
                    answered(asked, status, request_id, found), "succeeded" if status == 200 else "failed"
                )
        return None

    def _give_up(self, why: str) -> None:
        with self._writing:
            self.counts.left += 1
            self.counts.why = self.counts.why or why
            self._stopping.set()


def _spread(pause: float) -> float:
    """A pause up to half as long again, so that requests that were refused together do not come back together."""
    return pause * (1 + random.random() / 2)


class _Connection:
    """A connection that is opened again where it was closed."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._http = target.connection(timeout)
        self._headers = {"Content-Type": "application/json"} | target.headers

    def ask(self, path: str, content: bytes) -> tuple[int, str, Any]:
        """Returns the status, the request's id and the body. Raises NoRoom, OSError or HTTPException."""
        try:
            self._http.request("POST", path, content, self._headers)
            response = self._http.getresponse()
            text = response.read(MOST_ANSWER)
        except BaseException:
            self._http.close()
            raise
        if response.status in AGAIN:
            raise NoRoom(f"the server answers {response.status}: {_message(text)}", _seconds(response))
        return response.status, response.headers.get("x-request-id") or "", _json(text)

    def close(self) -> None:
        self._http.close()


def _json(text: bytes) -> Any:
    """The answer as JSON; as text where it is none, as from a proxy."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")


def _message(text: bytes) -> str:
    found = _json(text)
    error = found.get("error") if isinstance(found, dict) else None
    return str(error.get("message") if isinstance(error, dict) else found)[:200]


def _seconds(response: HTTPResponse) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after") or 0))
    except ValueError:
        return 0.0
