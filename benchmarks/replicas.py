"""Compare two replicas behind one address with two servers that clients ask directly. Their engines only wait.

    pip install 'gradus-llm[ray]'
    PYTHONPATH=src:. python benchmarks/replicas.py --out benchmarks/replicas.json

A scripted engine sleeps for a step and gives each of its streams a token, so all that is measured is the way of tokens
to clients. Both deployments run at the same time, and take turns under load. A count of events includes all that arrive
within a time window, so events with several tokens would count as one: `tokens` are counted in the text.

cpu_us: processor time per token of each kind of process, clients not included. earlier: measured by this script when
tokens still passed through Ray's proxy, and kept.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from gradus.bench.run.script import ran

REPLICAS, STREAMS, WARM_UP_S = 2, 32, 1.5
STEPS_MS = (20, 5, 2)
ENGINE = "ScriptedCore(slots=64, step_s={step}, piece='@ ', context_length=65536)"
SERVER = (
    "from gradus.server.config import ServerConfig; from gradus.server.serve import serve; "
    "serve(ServerConfig(model={model!r}, port=0), 'tests.server.scripted')"
)
NAMES = {"ProxyActor": "Ray's proxy", ":ingress": "ingress", "ServeReplica:front": "front", ":replica": "replica"}
TOKEN = b"@"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (%(default)s)")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS_MS, help="milliseconds (20 5 2)")
    parser.add_argument("--client", nargs="+", type=int, metavar="PORT", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        print(json.dumps(asyncio.run(tokens_per_second(asked.client, asked.seconds))), flush=True)
        os._exit(0)  # without waiting for streams that have not ended
    from gradus import doctor
    from gradus.bench.measure.fingerprint import commit, versions

    machine = doctor.hardware()
    before = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
    found: dict[str, Any] = {"commit": commit(), "processor": machine["processor"], "cores": machine["cores"]}
    found |= {"versions": versions(), "replicas": REPLICAS, "streams": STREAMS, "rows": []}
    found |= {"earlier": before["earlier"]} if "earlier" in before else {}
    for step in asked.steps:
        with side_by_side(step) as servers, behind_a_door(step) as door:
            ways: dict[str, list[dict[str, Any]]] = {"side by side": [], "one door": []}
            for _ in range(asked.rounds):
                for name, (roots, ports) in zip(ways, (servers, door), strict=True):
                    ways[name].append(sample(roots, ports, asked.seconds))
        row = {"step_ms": step, "ways": ways}
        rates = {name: round(median(one["tokens_s"] for one in samples)) for name, samples in ways.items()}
        print(step, "ms:", rates, f"{rates['one door'] / rates['side by side']:.2f}", ways["one door"][-1], flush=True)
        found["rows"].append(row)
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# -- what serves -------------------------------------------------------------------------------------------------------


@contextmanager
def side_by_side(step_ms: int) -> Iterator[tuple[list[psutil.Process], list[int]]]:
    """Two servers, each on a port of its own."""
    from tests.server.scripted import written

    code = SERVER.format(model=written(ENGINE.format(step=step_ms / 1e3)))
    with programs([[sys.executable, "-c", code] for _ in range(REPLICAS)]) as (roots, ports):
        yield roots, ports


@contextmanager
def behind_a_door(step_ms: int) -> Iterator[tuple[list[psutil.Process], list[int]]]:
    """The same servers as replicas on Ray, at one address."""
    command = [sys.executable, "-m", "tests.deploy.program", str(REPLICAS), str(step_ms / 1e3)]
    with programs([command]) as (roots, ports):
        yield roots, ports


@contextmanager
def programs(commands: Sequence[Sequence[str]]) -> Iterator[tuple[list[psutil.Process], list[int]]]:
    """Run programs that print their address. Their other lines are dropped, and they end with SIGTERM."""
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        for command in commands
    ]  # fmt: skip
    try:
        yield [psutil.Process(each.pid) for each in running], [port_of(each) for each in running]
    finally:
        for each in running:
            each.send_signal(signal.SIGTERM)
        for each in running:
            each.communicate(timeout=90)


def port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"at http://[\d.]+:(\d+)", line):
            return int(found[1])
    raise RuntimeError(f"{process.args!r} has ended without an address")


# -- load --------------------------------------------------------------------------------------------------------------


def sample(roots: list[psutil.Process], ports: list[int], seconds: float) -> dict[str, Any]:
    """Load the ports with all streams, divided evenly. Returns tokens per second, and processor time per token."""
    command = [sys.executable, __file__, "--out", os.devnull, "--seconds", str(seconds), "--client", *map(str, ports)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    client.stdout.readline()  # warmed up
    before = cpu_seconds(roots)
    rate, took = json.loads(client.stdout.readline())
    used = {part: spent - before.get(part, 0.0) for part, spent in cpu_seconds(roots).items()}
    client.wait()
    time.sleep(0.5)  # for the requests that were cut to end
    return {"tokens_s": round(rate, 1), "cpu_us": {part: round(1e6 * s / (rate * took), 1) for part, s in used.items()}}


def cpu_seconds(roots: list[psutil.Process]) -> dict[str, float]:
    """Processor time of the programs and their children, by kind."""
    found: dict[str, float] = defaultdict(float)
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            try:
                times, line = process.cpu_times(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            name = next((kind for part, kind in NAMES.items() if part in line), "")
            if not name:
                name = "engine" if "gradus.server.engine" in line else "server" if SERVER[:20] in line else "Ray"
            found[name] += times.user + times.system
    return found


async def tokens_per_second(ports: list[int], seconds: float) -> tuple[float, float]:
    """Read STREAMS answers at once, and count their tokens once all have begun. Prints a line when counting begins."""
    count = Counter[str]()
    tasks = [asyncio.create_task(read(ports[number % len(ports)], number, count)) for number in range(STREAMS)]
    await asyncio.sleep(WARM_UP_S)
    assert not any(task.done() for task in tasks), "a stream has ended"
    print("counting", flush=True)
    before, began = count["tokens"], time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    assert not any(task.done() for task in tasks), "a stream has ended"
    return (count["tokens"] - before) / took, took


async def read(port: int, number: int, count: Counter[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": f"{number} says hello", "max_tokens": 30_000, "stream": True}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    while data := await reader.read(1 << 16):
        count["tokens"] += data.count(TOKEN)


if __name__ == "__main__":
    sys.exit(ran(main))
