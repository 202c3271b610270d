"""Measure the cost of HTTP: the same requests through `/generate` and through the Python API, in turns.

    PYTHONPATH=src:. python3 benchmarks/http_cost.py --model random:qwen3-0.6b --out "$OUT"/http_cost.json
    PYTHONPATH=src:. python3 benchmarks/http_cost.py --model random:tiny-llama --device cpu --quick --out http_cost.json

Several streams send requests at the same time, each the next one as soon as its answer is complete. Over HTTP, the
server is a separate process (as `gradus serve` runs it), and so are the clients: raw sockets, server-sent events, one
connection per stream. Python's side is a loop around `LLM.submit` and `LLM.step`, which decodes tokens to text like the
server. Prompts are token ids. A token's time is when its event has been read, or when `step` has returned it.

The clients must not be the bottleneck, so their share of a processor is reported as well as the server's. `random:`
models use a tokenizer of bytes: most tokens of their large vocabularies are no text at all, and cost little to decode
on either side.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gradus.bench.record.metrics import METRICS, shown, spread
from gradus.bench.run.script import ran
from gradus.bench.workloads import Arrival, burst

if TYPE_CHECKING:  # the clients import this file: without torch they are there at once
    from gradus.text.llm import LLM

SIDES = ("python", "http")
COLUMNS = ("output_tok_s", "requests_s", "ttft_ms", "ttft_ms_p99", "itl_ms", "itl_ms_p99")
STREAMS = {"cpu": (1, 16, 64), "cuda": (1, 16, 64, 256)}
LENGTHS = {"cpu": (32, 32), "cuda": (256, 256)}  # tokens in and out
CLIENTS = 8  # processes at most
LEAD_S = 0.3  # between sending the clients their work and its start

Asked = tuple[float, list[float]]
"""When a request was sent, and when each of its tokens arrived, by one clock for all processes (CLOCK_MONOTONIC)."""


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


@dataclass
class Sample:
    """One run. client_percent, server_percent: of one processor's time during the run; None through Python."""

    asked: list[Asked]
    client_percent: float | None = None
    server_percent: float | None = None

    def summary(self, load: Load) -> dict[str, Any]:
        """As `gradus.bench` keeps a run. Raises ContenderFailed where a request did not get its tokens."""
        from gradus.bench.measure.drive import Run

        start = min(sent for sent, _ in self.asked)
        arrivals = [Arrival(sent - start, (0,) * load.prompt, load.output) for sent, _ in self.asked]
        run = Run(arrivals, [[at - start for at in times] for _, times in self.asked])
        run.check()
        shares = {"client_percent": self.client_percent, "server_percent": self.server_percent}
        return run.sample() | {name: round(share, 1) for name, share in shares.items() if share is not None}


# -- through Python ----------------------------------------------------------------------------------------------------


def through_python(llm: "LLM", load: Load, prompts: list[list[list[int]]]) -> Sample:
    """Run the load in one loop that owns the engine: it submits, steps, and records tokens."""
    from gradus.engine.request import SamplingParams

    params = SamplingParams(max_tokens=load.output, ignore_eos=True)
    waiting = [iter(rounds) for rounds in prompts]
    streams: dict[str, int] = {}  # by request
    asked: dict[str, Asked] = {}

    def ask(stream: int) -> None:
        prompt = next(waiting[stream], None)
        if prompt is not None:
            sent = time.monotonic()
            name = llm.submit(prompt, params)
            streams[name], asked[name] = stream, (sent, [])

    for stream in range(load.streams):
        ask(stream)
    while llm.has_work:
        deltas = llm.step()
        now = time.monotonic()
        for delta in deltas:
            asked[delta.request_id][1].extend([now] * len(delta.token_ids))
            if delta.completion is not None:
                ask(streams[delta.request_id])
    return Sample(list(asked.values()))


# -- through HTTP: the clients -----------------------------------------------------------------------------------------


def through_http(pool: ProcessPoolExecutor, server: "Server", load: Load, prompts: list[list[list[int]]]) -> Sample:
    """Run the load in client processes, which divide the streams and all begin at the same moment."""
    processes = min(CLIENTS, os.cpu_count() or 1, load.streams)
    start, used = time.monotonic() + LEAD_S, server.cpu_seconds()
    parts = [
        pool.submit(client, server.port, prompts[part::processes], load.output, start) for part in range(processes)
    ]
    found = [part.result() for part in parts]
    asked = [one for streams, _ in found for one in streams]
    seconds = max(times[-1] for _, times in asked) - start
    after = server.cpu_seconds()
    return Sample(
        asked,
        client_percent=100 * max(cpu_s for _, cpu_s in found) / seconds,
        server_percent=100 * (after - used) / seconds,
    )


def client(port: int, prompts: list[list[list[int]]], output: int, start: float) -> tuple[list[Asked], float]:
    """Run one client process. Returns its streams' requests, and the processor time that they took."""

    async def all_streams() -> list[list[Asked]]:
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        return await asyncio.gather(*(stream(port, rounds, output) for rounds in prompts))

    before = time.process_time()
    asked = asyncio.run(all_streams())
    return [one for rounds in asked for one in rounds], time.process_time() - before


async def stream(port: int, prompts: Sequence[list[int]], output: int) -> list[Asked]:
    """Send one request after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = []
    for prompt in prompts:
        sent = time.monotonic()
        writer.write(request(prompt, output))
        asked.append((sent, await answer(reader)))
    writer.close()
    return asked


def request(prompt: list[int], output: int) -> bytes:
    body = json.dumps({"prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True}).encode()
    head = (
        "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> list[float]:
    """Read one streamed answer. Returns the time of every token. Raises RuntimeError for anything else."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server refused: {head.splitlines()[0].decode()} {(await reader.read(300)).decode()}")
    assert b"transfer-encoding: chunked" in head.lower()
    times: list[float] = []
    rest = b""
    while size := int(await reader.readline(), 16):
        chunk = (await reader.readexactly(size + 2))[:-2]
        now = time.monotonic()
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                content = json.loads(event[6:])
                if "error" in content:
                    raise RuntimeError(content["error"]["message"])
                times += [now] * len(content["token_ids"])
    await reader.readline()  # the empty line after the last chunk
    return times


# -- through HTTP: the server ------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A server's first process, and its port."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """The processor time of its processes so far: the front end, and the engine."""
        first = psutil.Process(self.pid)
        spent = [process.cpu_times() for process in (first, *first.children(recursive=True))]
        return sum(each.user + each.system for each in spent)


@contextmanager
def serving(settings: dict[str, Any]) -> Iterator[Server]:
    """Run a server on a free port within the block. Raises RuntimeError if it does not start."""
    command = [sys.executable, __file__, "--serve", json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # `ready_line`, or nothing if it has ended
        if " at http://" not in line:
            raise RuntimeError("the server did not start; its last words are above")
        yield Server(process.pid, int(line.split(" at http://")[1].split()[0].rpartition(":")[2]))
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()


def serve(settings: dict[str, Any]) -> int:
    """Run the server, in its own process."""
    from gradus.server.config import ServerConfig
    from gradus.server.serve import serve as run

    return run(ServerConfig(port=0, max_waiting=4096, log_level="warning", **settings))


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One number of streams: every run's sample, by side."""

    load: Load
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def lines(self) -> list[list[str]]:
        """Format both sides, and the part of Python's rate that HTTP keeps."""
        lines: list[list[str]] = []
        python: dict[str, float] = {}
        for side in SIDES:
            samples = self.samples[side]
            values = {name: found.median for name in COLUMNS if (found := spread(samples, name))}
            kept = 100 * values["output_tok_s"] / python["output_tok_s"] if python else None
            shares = [kept, *(samples[-1].get(name) for name in ("client_percent", "server_percent"))]
            cells = [shown(values[name]) if name in values else "" for name in COLUMNS]
            lines.append([str(self.load.streams), side, *cells, *("" if s is None else f"{s:.0f} %" for s in shares)])
            python = values
        return lines


def compare(options: argparse.Namespace, llm: "LLM", loads: Sequence[Load], settings: dict[str, Any]) -> list[Row]:
    """Run every load on both sides: once to warm up, then as often as asked, with Python first every other time."""
    rows = []
    vocab_size = llm.config.vocab_size
    with serving(settings) as server, ProcessPoolExecutor(CLIENTS, get_context("spawn")) as pool:
        for load in loads:
            row = Row(load)
            for repeat in range(options.repeats + 1):
                for side in SIDES if repeat % 2 else SIDES[::-1]:
                    prompts = load.prompts(vocab_size, seed=1000 * load.streams + repeat)
                    if side == "python":
                        sample = through_python(llm, load, prompts)
                    else:
                        sample = through_http(pool, server, load, prompts)
                    if repeat:
                        row.samples[side].append(sample.summary(load))
            rows.append(row)
            print(f"{load.streams} streams measured", file=sys.stderr, flush=True)
    return rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it, as JSON."""
    from gradus.bench.measure.fingerprint import commit, fingerprint
    from gradus.models.precision import resolve_device
    from gradus.text.llm import LLM

    device = resolve_device(options.device)
    streams = options.streams or STREAMS[device.type]
    prompt, output = (8, 8) if options.quick else LENGTHS[device.type]
    loads = [Load(count, max(2, -(-16 // count)), prompt, output) for count in streams]
    context = prompt + output + 1
    settings = {
        "model": options.model,
        "phase": options.phase,
        "device": options.device,
        "dtype": options.dtype,
        "context_length": context,
        "max_sequences": max(streams),
        "cache_tokens": max(streams) * -(-context // 16) * 16,
    }
    llm = LLM(**settings)
    rows = compare(options, llm, loads, settings)
    return {
        "settings": settings | {"quick": options.quick, "repeats": options.repeats},
        "engine": llm.settings,
        "commit": options.commit or commit(),
        **fingerprint(device, quick=True),
        "rows": [asdict(row) for row in rows],
        "table": table(rows),
    }


def table(rows: Sequence[Row]) -> list[str]:
    """Format medians over the repeats, and the processor shares of the last one, for people."""
    header = ["streams", "side", *(METRICS[name].heading for name in COLUMNS), "kept", "busiest client", "server"]
    lines = [header, *(line for row in rows for line in row.lines())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:qwen3-0.6b")
    parser.add_argument("--phase", help="a phase of the course; the final engine by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--streams", type=lambda text: [int(count) for count in text.split(",")], help="as in 1,16,64")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a rehearsal: eight tokens in, eight out")
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve)
    if options.out is None:
        parser.error("--out is needed")
    found = measure(options)
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(found["table"]))
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
