"""What is seen of a server from outside: its processes' memory, descriptors and threads, and its own counts."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psutil

from benchmarks.start_to_first_token import Server

REST_S = 15.0  # for all requests to end, and the engine to check itself
LOOK_S = 0.1
SCRAPE_S = 1.0
LINE = re.compile(r"^gradus_(\w+?)(?:\{(.*)\})? ([\d.e+-]+)$", re.MULTILINE)
REASON = re.compile(r'finish_reason="(\w+)"')


@dataclass(frozen=True, slots=True)
class Body:
    """One process. pss: in bytes, a page that n processes share counting 1/n; RSS where the system has no PSS."""

    pss: int
    descriptors: int
    threads: int
    cpu_s: float

    @classmethod
    def of(cls, process: psutil.Process) -> "Body":
        memory, cpu = process.memory_full_info(), process.cpu_times()
        return cls(getattr(memory, "pss", memory.rss), process.num_fds(), process.num_threads(), cpu.user + cpu.system)


@dataclass(frozen=True, slots=True)
class Rest:
    """The server at rest, after a cycle. at: seconds since the start. busy: what had not ended. finished: samples by
    their ending."""

    at: float
    processes: dict[str, Body]
    stats: dict[str, Any]
    entered: int
    finished: dict[str, int]
    busy: bool


def processes(server: Server) -> dict[str, psutil.Process]:
    """The server's two processes: the one that speaks HTTP, and the engine."""
    front = psutil.Process(server.process.pid)
    engines = [child for child in front.children() if "gradus.server.engine.process" in child.cmdline()]
    return {"server": front} | ({"engine": engines[0]} if engines else {})


def cpu_seconds(server: Server) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes(server).values())


def counted(text: str) -> dict[tuple[str, str], float]:
    """The values of an exposition by name and labels."""
    return {(name, labels): float(value) for name, labels, value in LINE.findall(text)}


async def stats(server: Server) -> dict[str, Any]:
    _, text = await asyncio.to_thread(server.ask, "GET", "/stats", None)
    found: dict[str, Any] = json.loads(text)
    return found


async def metrics(server: Server) -> dict[tuple[str, str], float]:
    _, text = await asyncio.to_thread(server.ask, "GET", "/metrics", None)
    return counted(text.decode())


async def at_rest(server: Server, began: float, checked: int) -> Rest:
    """Wait until nothing runs and the engine has checked itself more often than `checked`, and look."""
    ends = monotonic() + REST_S
    while True:
        found = await stats(server)
        busy = bool(found["active"] or found["waiting"] or found["self_checks"] <= checked)
        if not busy or monotonic() > ends:
            break
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(LOOK_S)  # closed connections are gone
    seen = {name: Body.of(process) for name, process in processes(server).items()}
    values = await metrics(server)
    finished = {
        REASON.findall(labels)[0]: int(value)
        for (name, labels), value in values.items()
        if name == "samples_finished_total"
    }
    entered = sum(int(value) for (name, _), value in values.items() if name == "samples_total")
    return Rest(round(monotonic() - began, 3), seen, found, entered, finished, busy)


@dataclass
class Scraper:
    """Scrapes /metrics all along. scrapes: how often. fell: counters that went down."""

    server: Server
    scrapes: int = 0
    fell: list[str] = field(default_factory=list)
    _before: Mapping[tuple[str, str], float] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            found = await metrics(self.server)
            self.compare(found)
            await asyncio.sleep(SCRAPE_S)

    def compare(self, found: Mapping[tuple[str, str], float]) -> None:
        """Note counters below their last values."""
        self.scrapes += 1
        for (name, labels), value in found.items():
            if name.endswith(("_total", "_count", "_bucket")) and value < self._before.get((name, labels), 0):
                self.fell.append(f"{name}{{{labels}}}: {self._before[name, labels]:g}, then {value:g}")
        self._before = found


@dataclass
class Watcher:
    """Watches the live X-ray. events: that came. faults: what was wrong with them."""

    port: int
    events: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        began = monotonic()
        try:
            writer.write(b"GET /xray HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    self.events += 1
                    json.loads(line[6:])
            self.faults.append("the server closed the stream")
        except (OSError, ValueError) as error:
            self.faults.append(f"{type(error).__name__}: {error}"[:200])
        finally:
            self.seconds += monotonic() - began
            writer.transport.abort()
