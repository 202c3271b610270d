"""A real server in processes of its own, and random requests from several connections at once."""

import contextlib
import http.client
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz.mutations import mutated

CANARIES: list[dict[str, Any]] = [
    {"prompt": [5, 6, 7], "max_tokens": 6, "ignore_eos": True},
    {"prompt": "canary", "max_tokens": 6, "temperature": 1, "seed": 4, "frequency_penalty": 1, "n": 2},
    {"prompt": "canary", "max_tokens": 20, "structured": {"regex": "[a-f]{3}[0-9]{4}"}, "temperature": 1, "seed": 4},
]
GETS = [
    "/",
    "/health",
    "/stats",
    "/metrics",
    "/v1/models",
    "/v1/models/x",
    "/version",
    "/openapi.json",
    "/no-such-route",
]


@dataclass
class Served:
    """A server under attack. faults: answers that no request may get."""

    port: int
    process: psutil.Process
    faults: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def ask(self, method: str, path: str, body: bytes | None = None, seconds: float = 60) -> tuple[int, bytes]:
        """Ask on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("GET", "/stats")[1])
        return found

    def canaries(self) -> list[Any]:
        """The tokens of requests that nothing may change."""
        answers = [self.ask("POST", "/generate", json.dumps(each).encode()) for each in CANARIES]
        return [(status, [each["token_ids"] for each in samples(content)]) for status, content in answers]

    def attack(self, seed: int, count: int) -> None:
        """Send `count` random requests, one after the other. Some clients leave before their answer."""
        draw = random.Random(seed)
        for _ in range(count):
            if draw.random() < 0.05:
                self.judge("GET", path := draw.choice(GETS), b"", *self.ask("GET", path))
                continue
            path, body = mutated(draw)
            if draw.random() < 0.05:
                self.leave(path, body, draw.random() * 0.05)
            else:
                self.judge("POST", path, body, *self.ask("POST", path, body))

    def leave(self, path: str, body: bytes, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            self.ask("POST", path, body, max(seconds, 1e-3))

    def judge(self, method: str, path: str, body: bytes, status: int, answer: bytes) -> None:
        """Record an answer that a request must not get."""
        self.statuses[status] += 1
        if (line := fault_of(status, answer)) is not None:
            self.faults.append(f"{method} {path} {body[:2000]!r}: {line}")


def samples(content: bytes) -> list[dict[str, Any]]:
    answer = json.loads(content)
    return answer.get("choices", [answer])


def fault_of(status: int, answer: bytes) -> str | None:
    """Say what is wrong with an answer: a server's own error, a refusal that is not one line, or a leak."""
    text = answer.decode()  # always UTF-8
    if status >= 500 and status not in (503, 504):
        return f"status {status}: {text[:300]}"
    for leak in ("Traceback", 'File "', "object at 0x", "site-packages"):
        if leak in text:
            return f"status {status} leaks {leak!r}: {text[:300]}"
    if status >= 400:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else error
        if not message or "\n" in message.strip():
            return f"status {status} without one line: {text[:300]}"
    return None


@contextlib.contextmanager
def served(log: Path, *arguments: str) -> Iterator[Served]:
    """Serve a tiny model in processes of its own, on a port that the system chooses."""
    command = [sys.executable, "-m", "gradus", "serve", "--model", "random:tiny-qwen3", "--port", "0", *arguments]
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # once the model is loaded
        assert line, log.read_text()
        yield Served(int(line.split("http://127.0.0.1:")[1].split()[0]), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(60)


def attacked(server: Served, count: int, connections: int, seed: int) -> None:
    """Attack with several connections at once; then wait until the server has nothing left to do."""
    in_threads(*[partial(server.attack, seed * 1000 + each, count // connections) for each in range(connections)])
    ends = time.monotonic() + 30
    while (found := server.stats())["active"] or found["waiting"]:
        assert time.monotonic() < ends, found
        time.sleep(0.2)


def in_threads(*calls: Callable[[], None]) -> None:
    """Run each call in a thread of its own. Raises the first one's exception, if there is any."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for running in [pool.submit(call) for call in calls]:
            running.result()
