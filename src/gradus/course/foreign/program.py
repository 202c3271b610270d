"""The process of a program under test: started, asked, ended. Every fault is one line, with the end of its stderr.

A command that names {port} is asked over HTTP, on a free port; any other one by lines on its standard input and output.
"""

import http.client
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol, Self

from gradus.course.foreign.report import shown
from gradus.errors import ConfigError

TAIL = 300  # characters of stderr that a message quotes
RETRY_S = 0.02
TO_LEAVE_S = 2.0
MOST_ANSWER = 1 << 22  # bytes

Message = dict[str, Any]


class Fault(Exception):
    """The program did not answer as a program should: it ended, was late, or wrote what is not JSON."""


class Channel(Protocol):
    def ask(self, message: Message, seconds: float) -> bytes:
        """Send a message and return the answer. Raises TimeoutError, or OSError if there is no one to answer."""

    def close(self) -> None: ...


class Lines:
    """One JSON object per line: to the program's standard input, from its standard output."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self.into, self.out = process.stdin, process.stdout
        self.read = b""

    def ask(self, message: Message, seconds: float) -> bytes:
        self.into.write(json.dumps(message).encode() + b"\n")
        self.into.flush()
        until = time.monotonic() + seconds
        while b"\n" not in self.read:
            ready, _, _ = select.select([self.out], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            more = self.out.read1(1 << 16)  # type: ignore[attr-defined]
            if not more:
                raise ConnectionError("its output ended")
            self.read += more
            if len(self.read) > MOST_ANSWER:
                return self.read
        line, _, self.read = self.read.partition(b"\n")
        return line

    def close(self) -> None:
        for end in (self.into, self.out):
            with suppress(OSError):
                end.close()


@dataclass
class Http:
    """POST / with a message, on a connection of its own."""

    port: int

    def ask(self, message: Message, seconds: float) -> bytes:
        answer, until = b"", time.monotonic() + seconds
        with self.request("POST", "/", message, seconds) as response:
            while (more := response.read1(1 << 16)) and len(answer) < MOST_ANSWER:
                answer += more
                if time.monotonic() > until:
                    raise TimeoutError
        return answer

    @contextmanager
    def request(self, method: str, path: str, body: object, seconds: float) -> Iterator[http.client.HTTPResponse]:
        """Yield the response as its headers have come. Leaving closes the connection, however much has been read.

        body: sent as JSON, and bytes as they are.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
            connection.request(method, path, sent, {"content-type": "application/json"})
            response = connection.getresponse()
            yield response
            response.close()
        finally:
            connection.close()

    def close(self) -> None:
        pass


class Program:
    """A running program. Use as a context: leaving it ends the process.

    command: as a person types it; {port} in it is replaced. seconds: the limit for each answer, and for the start.
    Raises ConfigError for a command that cannot be run at all.
    """

    def __init__(self, command: str, seconds: float) -> None:
        self.seconds = seconds
        port = free_port() if "{port}" in command else None
        self.words = words_of(command.replace("{port}", str(port)))
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        pipe = subprocess.PIPE if port is None else subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                self.words,
                stdin=pipe,
                stdout=subprocess.PIPE if port is None else self.errors,
                stderr=self.errors,
                start_new_session=True,  # a group of its own, which ends as a whole
            )
        except OSError as error:
            self.errors.close()
            raise ConfigError(f"--command: {self.words[0]} cannot be started: {error.strerror or error}") from error
        self.http = None if port is None else Http(port)
        self.channel: Channel = self.http or Lines(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its children: by the end of its input or SIGTERM, else by SIGKILL."""
        self.channel.close()
        if self.http is not None:
            self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(TO_LEAVE_S)
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.errors.close()

    def signal(self, number: int) -> None:
        """Send a signal to all of the program's processes that are left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def send(self, message: Message) -> Message:
        """Send a message, and return the answer, a JSON object. Raises Fault."""
        what = message.get("do", "")
        try:
            answer = self.channel.ask(message, self.seconds)
        except TimeoutError:
            raise self.fault(f"no answer to {what!r} within {self.seconds:g} s") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self.fault(f"no answer to {what!r}: {type(error).__name__}: {error}") from None
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            text = shown(answer.decode(errors="replace")) or "nothing"
            raise self.fault(f"the answer to {what!r} must be one JSON object, got {text}")
        return found

    def wait_until_listening(self) -> None:
        """Wait until the port answers. Raises Fault if the process ends before, or takes too long."""
        until = time.monotonic() + self.seconds
        while self.http is not None:
            if self.process.poll() is not None:
                raise self.fault("it ended before it listened")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.http.port), timeout=self.seconds):
                return
            if time.monotonic() > until:
                raise self.fault(f"nothing listens on port {self.http.port} after {self.seconds:g} s")
            time.sleep(RETRY_S)

    def fault(self, what: str) -> Fault:
        """A fault, with how the process ended if it has, and the last it wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.05 if self.process.poll() is None else 0)
        code = self.process.returncode
        how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        size = os.fstat(self.errors.fileno()).st_size
        written = os.pread(
            self.errors.fileno(), 4 * TAIL, max(0, size - 4 * TAIL)
        )  # seeking would move the program's end
        tail = " ".join(written.decode(errors="replace").split())[-TAIL:]
        return Fault(f"{what}{how}" + (f"; its stderr ends: {tail}" if tail else ""))


def words_of(command: str) -> list[str]:
    """Split a command. Raises ConfigError for an empty one, an open quote, or a placeholder that nothing fills."""
    if unknown := re.search(r"\{[a-z_]+\}", command):
        raise ConfigError(
            f"--command: only {{port}} is filled in, got {unknown[0]}; the model's folder comes by message"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--command cannot be split into words: {error}") from error
    if not words:
        raise ConfigError("--command must name a program, got nothing")
    return words


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
