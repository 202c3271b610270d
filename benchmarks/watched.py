"""Measure the cost of a watcher: one server under load, in turns without a client at GET /xray and with one.

    PYTHONPATH=src:. python3 benchmarks/watched.py --shape qwen3-0.6b --tokenizer qwen2.5-coder-0.5b \
        --out "$OUT"/watched.json
    PYTHONPATH=src:. python3 benchmarks/watched.py --shape tiny-llama --device cpu --dtype float32 --streams 8 \
        --out my-reports/watched.json

The server is started as its users start it, with a shape's random weights and a real tokenizer (a tiny shape has its
own). Streams are full all the time: each sends one request after the other, and an event comes for every token. Rounds
alternate, and the next pair of rounds begins with the other side, so that neither has the warmer machine. The watcher
is a process of its own that reads all events and counts them. The share kept is the median over pairs of rounds.

`--quick` is a rehearsal: few streams of a few tokens.
"""

import argparse
import http.client
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.server_beside_vllm import (
    CONTEXT,
    FIRST_IDS,
    QUICK,
    TOKENS,
    Load,
    Server,
    free_port,
    judged,
    our_command,
    run_with,
    serve_load,
    serving,
    write,
)
from gradus.bench.record.metrics import METRICS, shown, spread, values
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.load.asking.clients import crew
from gradus.load.asking.routes import GENERATE

ALONE, WATCHED = "nobody watches", "watched"
SIDES = (ALONE, WATCHED)
MUST = 0.99
PROMPT, OUTPUT = 64, 128


@dataclass(frozen=True)
class Seen:
    """Events and bytes that a watcher received in `seconds`."""

    events: int
    bytes: int
    seconds: float


@contextmanager
def watching(server: Server) -> Iterator[list[Seen]]:
    """Watch within the block. Afterwards the list holds what was seen. Raises RuntimeError if nothing was."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    watcher = context.Process(target=_watch, args=(server.port, theirs), daemon=True)
    watcher.start()
    seen: list[Seen] = []
    try:
        if not ours.poll(30) or ours.recv() != "watching":
            raise RuntimeError("the watcher saw nothing within 30 s")
        yield seen
        ours.send("stop")
        if not ours.poll(30):
            raise RuntimeError("the watcher does not end")
        seen.append(ours.recv())
    finally:
        watcher.kill()
        watcher.join()
        time.sleep(0.5)  # the server notices, and ends the engine's looks at itself


def _watch(port: int, told: Any) -> None:
    """Read events until a message comes. The first one says that the watching has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/xray")
    answer = connection.getresponse()
    began, events, size = 0.0, 0, 0
    while not told.poll():
        line = answer.readline()
        if not line.startswith(b"data: "):
            continue
        if not began:
            began = time.monotonic()
            told.send("watching")
        events, size = events + 1, size + len(line)
    told.send(Seen(events, size, round(time.monotonic() - began, 3)))


def measure(model: Path, load: Load, options: argparse.Namespace, made: dict[str, Any]) -> str:
    """Run rounds in turns, the first pair unmeasured. Returns the table."""
    samples: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    port, log = free_port(), options.out.parent / "logs" / f"watched-{options.shape}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with crew() as pool, serving(our_command(model, port, options), model, port, log) as server:
        for repeat in range(options.repeats + 1):
            for side in SIDES if repeat % 2 else SIDES[::-1]:
                seed = 10 * repeat + SIDES.index(side)  # other prompts, or the prefix cache would have them
                arguments = pool, server, GENERATE, load, load.jobs(options.ids, seed)
                if side == ALONE:
                    sample = serve_load(*arguments)
                else:
                    with watching(server) as seen:
                        sample = serve_load(*arguments)
                    sample |= {"seen": asdict(seen[0])}
                if repeat:
                    samples[side].append(sample)
                    print(f"  {side}: {METRICS[TOKENS].read(sample):,.0f} {METRICS[TOKENS].heading}", flush=True)
                made["samples"] = samples
                write(options.out, made)
    return table(samples)


def table(samples: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Format the rates of both sides, the share that is kept, and the watcher's events."""
    pairs = zip(*(values(list(samples[side]), TOKENS) for side in SIDES), strict=True)
    kept = median(watched / alone for alone, watched in pairs)
    lines = []
    for side in SIDES:
        found = spread(list(samples[side]), TOKENS)
        assert found is not None
        each = " ".join(shown(value) for value in values(list(samples[side]), TOKENS))
        share = judged(kept if side == WATCHED else None, MUST, "{:.1%}".format)
        seen = [sample["seen"] for sample in samples[side] if "seen" in sample]
        rates = [f"{median(one[name] / one['seconds'] for one in seen):,.0f}" if seen else "" for name in SEEN]
        lines.append([side, shown(found.median), *share, *rates, each])
    return markdown(["side", METRICS[TOKENS].heading, "kept", "must", "reached", *SEEN.values(), "samples"], lines)


SEEN = {"events": "events a second", "bytes": "bytes a second"}


def run(options: argparse.Namespace, folder: Path) -> str:
    from benchmarks.random_folder import write_folder
    from gradus.bench.measure.fingerprint import commit, fingerprint
    from gradus.models.precision import resolve_device
    from gradus.models.shapes import SHAPES

    tiny = options.shape.startswith("tiny-")
    model = Path(f"random:{options.shape}") if tiny else folder
    if not tiny:
        write_folder(folder, options.shape, options.tokenizer, options.device)
    options.ids = min(SHAPES[options.shape].vocab_size, FIRST_IDS)
    options.sequences, options.context = (QUICK["streams"] if options.quick else options.streams), CONTEXT
    load = Load(**QUICK) if options.quick else Load(options.streams, options.rounds, PROMPT, OUTPUT)
    made: dict[str, Any] = {
        "commit": options.commit or commit(),
        **fingerprint(resolve_device(options.device), quick=True),
        "shape": options.shape,
        "dtype": options.dtype,
        "quick": options.quick,
        "repeats": options.repeats,
        "load": asdict(load),
    }
    made["table"] = measure(model, load, options, made)
    write(options.out, made)
    return str(made["table"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", help="as in qwen3-0.6b, or a tiny one")
    parser.add_argument(
        "--tokenizer", default="qwen2.5-coder-0.5b", help="the model, or folder, whose tokenizer it has"
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4, help="requests that each stream sends in a round")
    parser.add_argument("--repeats", type=int, default=8, help="pairs of rounds")
    return run_with(parser, run)


if __name__ == "__main__":
    sys.exit(ran(main))
