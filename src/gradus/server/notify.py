"""systemd's protocol for services (sd_notify): whether the server has started, is alive, and what it does now.

A message is one datagram of `NAME=value` lines to the socket in `NOTIFY_SOCKET`, which systemd sets for units of
`Type=notify`. Without that variable, nothing here runs. A manager that does not listen ends nothing.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gradus.server.client import EngineClient

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the server: most often nothing has changed, and nothing is sent
EXTENSION_S = 900  # for the rest of a start, whenever loading has moved on


class Manager:
    """The service manager that started this process.

    path: its socket; one that begins with @ is abstract. watchdog_s: the longest time between two signs of life that it
    allows; 0 if it waits for none.
    """

    def __init__(self, path: str, watchdog_s: float = 0.0) -> None:
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._beat_s = watchdog_s / 2  # a late turn of the event loop is no failure yet
        self._beaten = 0.0
        self._status = ""
        self._started = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Manager | None":
        """Return the manager that a process's environment names; None for one that systemd did not start."""
        path = environment.get("NOTIFY_SOCKET", "")
        if not path.startswith(("/", "@")):
            if path:
                log.warning("NOTIFY_SOCKET is no path and no abstract socket: nothing is reported to %.60r", path)
            return None
        return cls(path, watchdog_s(environment))

    def send(self, *lines: str) -> None:
        """Send one message. A full queue loses it: waiting for room would hold up all clients."""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(lines).encode(), self._address)

    def ready(self) -> None:
        """Report that requests are taken: units ordered after this one may start."""
        self._started = True
        self.send("READY=1")

    def stopping(self) -> None:
        self.send("STOPPING=1")

    async def follow(self, clients: Sequence[EngineClient]) -> None:
        """Report the state of the server's models whenever it changes, and signs of life, until cancelled."""
        while True:
            self.look(clients, time.monotonic())
            await asyncio.sleep(min(LOOK_S, self._beat_s / 2) if self._beat_s else LOOK_S)

    def look(self, clients: Sequence[EngineClient], now: float) -> None:
        """Report what has changed. now: seconds of a clock.

        While a model loads, progress extends the time allowed for the start. Once all engines have failed, the server
        gives no sign of life, so that the watchdog starts it again even with --on-failure retry.
        """
        lines = []
        if (status := "; ".join(map(status_of, clients))) != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
            if not self._started:
                lines.append(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")
        if self._beat_s and now - self._beaten >= self._beat_s and any(each.state != "failed" for each in clients):
            self._beaten = now
            lines.append("WATCHDOG=1")
        if lines:
            self.send(*lines)


def watchdog_s(environment: Mapping[str, str]) -> float:
    """Read the watchdog's interval, in seconds; 0 if it is off or meant for another process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    interval = environment.get("WATCHDOG_USEC", "")
    return int(interval) / 1e6 if interval.isdecimal() else 0.0


def status_of(client: EngineClient) -> str:
    """Say in one line what a model does, for `systemctl status`."""
    text = f"serving {client.model}: {client.metrics.active} running, {client.waiting} waiting"
    return " ".join((text if client.state == "ready" else client.reason).split())
