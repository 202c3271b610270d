"""Clients that keep servers busy and cost little themselves: they count events, and parse none.

Each connection sends one request after the other and reads server-sent events as bytes. The number of tokens is what
the server's own usage says at the end of a stream; an answer with another number, or an error in it, ends the run.
Several processes divide the connections and begin at the same moment. No torch here.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import psutil

from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import burst

CLIENTS = 8  # processes at most
LEAD_S = 0.3  # between sending the clients their work and its start
EVENT = b"data: {"
END = b"\r\n0\r\n\r\n"  # of the last chunk but one, and the empty chunk; JSON escapes line breaks, so no text has it
USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
KEPT = 2048  # bytes of a stream's end: more than its last event

GENERATE, COMPLETIONS = "/generate", "/v1/completions"
"""Protocols, by their paths."""


@dataclass(frozen=True)
class Load:
    """`streams` that each send `rounds` requests, one after the other."""

    streams: int
    rounds: int
    prompt: int
    output: int

    def prompts(self, vocab_size: int, seed: int) -> list[list[list[int]]]:
        """Make prompts by stream and round. Different seeds share no prefix, so no cache helps."""
        arrivals = burst(self.streams * self.rounds, self.prompt, self.output, seed).arrivals(vocab_size)
        ids = [list(arrival.prompt) for arrival in arrivals]
        return [ids[stream :: self.streams] for stream in range(self.streams)]


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Times by one clock for all processes (CLOCK_MONOTONIC). events: those that held tokens."""

    sent: float
    first: float
    last: float
    events: int


def request(path: str, model: str, prompt: Sequence[int], output: int, temperature: float) -> bytes:
    """Write a request whose stream has an event for every token."""
    body: dict[str, Any] = {"prompt": list(prompt), "max_tokens": output, "temperature": temperature}
    body |= {"ignore_eos": True, "stream": True}
    if path == COMPLETIONS:
        body |= {"model": model, "stream_options": {"include_usage": True}}
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Connection(asyncio.Protocol):
    """Sends requests one after the other. done: gets the answers, or the exception of the first failure."""

    def __init__(self, requests: Sequence[bytes], output: int, usage_events: int, done: "asyncio.Future[Any]") -> None:
        self._requests, self._output, self._usage_events, self._done = requests, output, usage_events, done
        self._answers: list[Answer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._events, self._first, self._end = 0, 0.0, b""
        self._sent = time.monotonic()
        self._transport.write(self._requests[len(self._answers)])

    def data_received(self, data: bytes) -> None:
        if not self._first:
            if not self._begins(data):
                return
            data, self._end = self._end, b""
        seen = self._end[1 - len(EVENT) :] + data
        self._events += seen.count(EVENT)
        if self._events and not self._first:
            self._first = time.monotonic()
        self._end = (self._end + data)[-KEPT:]
        if self._end.endswith(END):
            self._ended()

    def _begins(self, data: bytes) -> bool:
        """Gather bytes until the first event. Returns whether it is there."""
        self._end += data
        if not self._end.startswith(b"HTTP/1.1 200"[: len(self._end)]):
            self._fail(f"the server refused: {self._end[:400]!r}")
        return EVENT in self._end

    def _ended(self) -> None:
        usage = USAGE.findall(self._end)
        if not usage or int(usage[-1]) != self._output:
            return self._fail(f"{self._output} tokens were asked for, and this came last: {self._end[-400:]!r}")
        events = self._events - self._usage_events
        self._answers.append(Answer(self._sent, self._first, time.monotonic(), events))
        if len(self._answers) < len(self._requests):
            self._send()
        else:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(self._answers)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"the connection was lost: {exc}; last came {self._end[-200:]!r}"))

    def _fail(self, why: str) -> None:
        self._transport.close()
        if not self._done.done():
            self._done.set_exception(RuntimeError(why))


def client(
    port: int, requests: Sequence[Sequence[bytes]], output: int, usage_events: int, start: float
) -> tuple[list[Answer], float]:
    """Run one client process. Returns its connections' answers, and the processor time that they took."""

    async def connection(rounds: Sequence[bytes]) -> list[Answer]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Answer]] = loop.create_future()
        await loop.create_connection(lambda: Connection(rounds, output, usage_events, done), "127.0.0.1", port)
        return await done

    async def all_connections() -> list[list[Answer]]:
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        return await asyncio.gather(*map(connection, requests))

    before = time.process_time()
    answers = asyncio.run(all_connections())
    return [one for rounds in answers for one in rounds], time.process_time() - before


@contextmanager
def clients() -> Iterator[ProcessPoolExecutor]:
    """Client processes, each already started: starting one takes as long as a run."""
    count = min(CLIENTS, max(1, (os.cpu_count() or 1) // 2))
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for each in [pool.submit(time.sleep, 0.2) for _ in range(count)]:
            each.result()
        yield pool


def serve_load(
    pool: ProcessPoolExecutor, server: psutil.Process, port: int, path: str, model: str, load: Load,
    prompts: list[list[list[int]]], temperature: float,
) -> dict[str, Any]:  # fmt: skip
    """Run the load. Returns a sample as `gradus.bench` keeps it, with how busy the processors were.

    client_percent, server_percent: of one processor, the busiest client process and all of the server's together.
    idle_cores: of the whole machine, on average.
    """
    written = [[request(path, model, prompt, load.output, temperature) for prompt in rounds] for rounds in prompts]
    usage_events = 1 if path == COMPLETIONS else 0
    processes = min(pool._max_workers, load.streams)  # type: ignore[attr-defined]
    start, used = time.monotonic() + LEAD_S, cpu_seconds(server)
    parts = [
        pool.submit(client, port, written[part::processes], load.output, usage_events, start)
        for part in range(processes)
    ]
    time.sleep(max(0.0, start - time.monotonic()))
    idle = psutil.cpu_times()
    found = [part.result() for part in parts]
    over, after = psutil.cpu_times(), cpu_seconds(server)
    took = time.monotonic() - start
    answers = [one for each, _ in found for one in each]
    seconds = max(one.last for one in answers) - min(one.sent for one in answers)
    events = sum(one.events for one in answers)
    return {
        "seconds": significant(seconds, 6),
        "completed": len(answers),
        "output_tokens": len(answers) * load.output,
        "prompt_tokens": len(answers) * load.prompt,
        "tokens_an_event": significant(len(answers) * load.output / events, 4),
        "ttft_ms": distribution(1e3 * (one.first - one.sent) for one in answers),
        "client_percent": round(100 * max(cpu_s for _, cpu_s in found) / seconds, 1),
        "server_percent": round(100 * (after - used) / seconds, 1),
        "idle_cores": round((over.idle - idle.idle) / took, 1),
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time that a process and its descendants have taken."""
    spent = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in spent)
