"""From `gradus serve`, and from a request to a server that sleeps, to the first token: how long, and at which stages?

    PYTHONPATH=src:. python3 benchmarks/start_to_first_token.py --model smollm2-135m --out "$OUT"/start.json
    PYTHONPATH=src:. python3 benchmarks/start_to_first_token.py --model random:llama-3.1-8b --cases warm wake \
        --out "$OUT"/start.json -- --device cuda

Three cases: `cold`, where the system has dropped its cache of files first (as root, on Linux); `warm`, where it has
not; and `wake`, where a request meets a server that sleeps (`--sleep-after`). A start is timed from the command to the
first token of a request that is sent as soon as /health says 200, a wake from the request. Stages are those of /health,
asked every 20 ms: each lasts until the next one is seen. Kernels are kept between starts, unless this is a machine's
first one. While the server sleeps, the memory of all its processes is read: PSS, a page that n processes share counting
1/n, and on an NVIDIA GPU what is in use, before the server started and now.

Options after `--` go to `gradus serve`. The results are written after each case.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import psutil

from gradus.bench.measure.fingerprint import commit
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.doctor import machine
from gradus.errors import ConfigError

CASES = ("cold", "warm", "wake")
LOOK_S = 0.02  # between two questions
READY_S, STOP_S = 600.0, 30.0
SLEEP_AFTER_S = 1.0
SETTLE_S = 1.0  # for a sleeping server's engine to end, and its memory to be given back
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
UNREACHED = "starting Python"  # before HTTP answers
UNSAID = "loading"  # before the first stage is reported
FIRST_TOKEN = "first token"
MIB = 1 << 20


class Server:
    """A `gradus serve` that was started now. log: takes what it says."""

    def __init__(self, model: str, more: Sequence[str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._log = log
        self.began = time.monotonic()
        with log.open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gradus", "serve", "--model", model, "--port", str(self.port), *more],
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def health(self) -> tuple[int, dict[str, Any]]:
        """Returns status 0 before HTTP answers. Raises RuntimeError once the process has ended."""
        if self.process.poll() is not None:
            words = self._log.read_text().splitlines()[-1:]
            raise RuntimeError(f"the server ended with exit code {self.process.returncode}: {' '.join(words)}")
        try:
            status, body = self.ask("GET", "/health", None)
        except (OSError, http.client.HTTPException):
            return 0, {}
        return status, json.loads(body)

    def ask(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def first_token(self, prompt: Sequence[int]) -> None:
        """Have one token generated. Raises RuntimeError if none comes."""
        status, body = self.ask("POST", "/generate", {"prompt": list(prompt), "max_tokens": 1, "temperature": 0})
        if status != 200 or len(json.loads(body)["token_ids"]) != 1:
            raise RuntimeError(f"status {status}: {body[:300]!r}")

    def memory(self) -> int:
        """Add up the PSS of all its processes, in bytes; where the system has none, their RSS."""
        whole = psutil.Process(self.process.pid)
        found = [each.memory_full_info() for each in (whole, *whole.children(recursive=True))]
        return sum(getattr(each, "pss", each.rss) for each in found)


@contextmanager
def started(model: str, more: Sequence[str], log: Path) -> Iterator[Server]:
    """Run a server within the block, and end it with all that it has started."""
    server = Server(model, more, log)
    try:
        yield server
    finally:
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.terminate()
        try:
            server.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        psutil.wait_procs(family, timeout=STOP_S)


class Clock:
    """The stages between a beginning and an end, in seconds, in order of their first appearance."""

    def __init__(self, began: float, stage: str) -> None:
        self.stages: dict[str, float] = {}
        self._stage, self._since = stage, began

    def at(self, stage: str) -> None:
        now = time.monotonic()
        self.stages[self._stage] = self.stages.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def sample(self) -> dict[str, Any]:
        self.at("")
        stages = {name: round(seconds, 3) for name, seconds in self.stages.items()}
        return {"first_token_s": round(sum(self.stages.values()), 3), "stages": stages}


def start(server: Server, prompt: Sequence[int]) -> dict[str, Any]:
    """Time a start that has just begun, up to the first token."""
    clock = Clock(server.began, UNREACHED)
    while time.monotonic() - server.began < READY_S:
        status, health = server.health()
        if status == 200:
            clock.at(FIRST_TOKEN)
            server.first_token(prompt)
            return clock.sample()
        if status:
            clock.at((health.get("progress") or {}).get("stage", UNSAID))
        time.sleep(LOOK_S)
    raise RuntimeError(f"the server was not ready after {READY_S:g} s")


def wake(server: Server, prompt: Sequence[int]) -> dict[str, Any]:
    """Wait until the server sleeps, then time a request to it, whose stages are those of /health."""
    while server.health()[1].get("status") != "asleep":
        time.sleep(LOOK_S)
    time.sleep(SETTLE_S)
    asleep = {"asleep_mib": round(server.memory() / MIB, 1), "asleep_gpu_mib": gpu_memory()}
    clock, failed = Clock(time.monotonic(), UNSAID), list[BaseException]()
    request = Thread(target=caught, args=(failed, lambda: server.first_token(prompt)))
    request.start()
    while request.is_alive():
        health = server.health()[1]
        clock.at(FIRST_TOKEN if health["status"] == "ready" else (health.get("progress") or {}).get("stage", UNSAID))
        request.join(LOOK_S)
    if failed:
        raise failed[0]
    return clock.sample() | asleep


def caught(failed: list[BaseException], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        failed.append(error)


def gpu_memory() -> int | None:
    """The memory in use on the first NVIDIA GPU, in MiB; None without one."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, timeout=20).stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def drop_caches() -> None:
    """Raises ConfigError where the system's cache of files cannot be dropped."""
    try:
        os.sync()
        DROP_CACHES.write_text("1")
    except OSError as error:
        raise ConfigError(
            f"{DROP_CACHES} cannot be written ({error.strerror}): run as root, or without cold"
        ) from error


def measure(options: argparse.Namespace) -> None:
    """Measure all models and cases, and write what there is after each case."""
    made: dict[str, Any] = {
        "hardware": machine.hardware(),
        "commit": options.commit or commit(),
        "more": options.more,
        "models": {},
    }
    prompt = range(100, 100 + options.prompt)
    for model in options.model:
        found: dict[str, Any] = {"gpu_mib_before": gpu_memory(), "cases": {}}
        made["models"][model] = found
        for case in options.cases:
            found["cases"][case] = measured(model, case, prompt, options)
            options.out.write_text(json.dumps(made, indent=1) + "\n")
            print(f"{model}, {case}: {[each['first_token_s'] for each in found['cases'][case]]} s", flush=True)
    print(table(made["models"]))


def measured(model: str, case: str, prompt: Sequence[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    log = options.out.with_suffix(".log")
    if case == "wake":
        sleeps = ("--sleep-after", str(SLEEP_AFTER_S))
        with started(model, (*options.more, *sleeps), log) as server:
            start(server, prompt)
            return [wake(server, prompt) for _ in range(options.repeats)]
    samples = []
    for _ in range(options.repeats):
        if case == "cold":
            drop_caches()
        with started(model, options.more, log) as server:
            samples.append(start(server, prompt))
    return samples


def table(models: dict[str, Any]) -> str:
    """Format medians: the whole, then each stage of the middle sample."""
    lines = []
    for model, found in models.items():
        for case, samples in found["cases"].items():
            middle = sorted(samples, key=lambda sample: sample["first_token_s"])[len(samples) // 2]
            stages = " · ".join(f"{name} {seconds:.2f}" for name, seconds in middle["stages"].items())
            asleep = [sample["asleep_mib"] for sample in samples if "asleep_mib" in sample]
            whole = f"{median(sample['first_token_s'] for sample in samples):.2f}"
            lines.append([model, case, whole, f"{median(asleep):.0f}" if asleep else "", stages])
    return markdown(["model", "case", "to the first token (s)", "asleep (MiB)", "stages (s)"], lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", help="as for gradus serve; may be given several times")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["warm", "wake"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path, default=Path("start.json"))
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    options.more = arguments[at + 1 :]
    options.model = options.model or ["smollm2-135m"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
