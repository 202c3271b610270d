"""Measure the server's front end: its processor time per token, by thread, with an engine that computes nothing.

    PYTHONPATH=src:. python3 benchmarks/front_end.py --tokenizer qwen2.5-coder-0.5b --out front_end.json

Streams of both protocols read an event per token from a server whose engine is mock_engine.py. Its steps either come at
a fixed pace, which the front end keeps up with, so that each token is written by itself; or as fast as the front end
takes them. To measure another commit, let PYTHONPATH name its `src` instead of this one's. Linux only.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.server_beside_vllm import Command, Load, free_port, serve_load, serving
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.load.asking.clients import crew
from gradus.load.asking.routes import COMPLETIONS, GENERATE

IDS = 49_000
LOADS = {256: Load(256, 2, 64, 128), 1: Load(1, 4, 64, 128)}


@dataclass(frozen=True)
class Spent:
    """Processor time in seconds of a process's first thread, and of all others together."""

    first: float
    others: float

    @classmethod
    def by(cls, process: psutil.Process) -> "Spent":
        found = {int(each.name): seconds_of(each) for each in Path(f"/proc/{process.pid}/task").iterdir()}
        first = found.pop(process.pid)
        return cls(first, sum(found.values()))

    def since(self, before: "Spent", tokens: int) -> dict[str, float]:
        """Microseconds per token."""
        pairs = {"first_thread_us": self.first - before.first, "other_threads_us": self.others - before.others}
        return {name: round(1e6 * value / tokens, 2) for name, value in pairs.items()}


def seconds_of(task: Path) -> float:
    """Processor time of a thread. The scheduler's own is exact; times by clock tick miss work that follows the tick."""
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def server_command(port: int, tokenizer: str, step_s: float, text: str | None) -> Command:
    environment = {"MOCK_STEP_S": str(step_s)} | ({"MOCK_TOKENS": text} if text else {})
    return Command([sys.executable, "-m", "benchmarks.front_end", "--serve", str(port), "--tokenizer", tokenizer],
                   "/health/ready", environment)  # fmt: skip


def serve_mock(port: int, tokenizer: str) -> int:
    from gradus.server.config import ServerConfig
    from gradus.server.serve import serve

    config = ServerConfig(model=tokenizer, port=port, max_waiting=4096, log_level="warning")
    return serve(config, "benchmarks.mock_engine")


def measure(options: argparse.Namespace, step_s: float, load: Load) -> dict[str, list[dict[str, Any]]]:
    port, found = free_port(), dict[str, list[dict[str, Any]]]()
    command = server_command(port, options.tokenizer, step_s, options.text)
    log = options.out.with_suffix(".log")
    with crew() as pool, serving(command, Path(options.tokenizer), port, log) as server:
        for repeat in range(options.repeats + 1):
            for path in options.paths:
                jobs = load.jobs(IDS, 10 * repeat + len(path))
                before = Spent.by(server.process)
                sample = serve_load(pool, server, path, load, jobs)
                sample |= Spent.by(server.process).since(before, sample["output_tokens"])
                if repeat:
                    found.setdefault(path, []).append(sample)
    return found


def table(rows: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    header = ["pace", "path", "tok/s", "first thread µs", "other threads µs", "tokens an event", "samples"]
    lines = []
    for pace, paths in rows.items():
        for path, samples in paths.items():
            rate = median(one["output_tokens"] / one["seconds"] for one in samples)
            first, others, events = (median(one[name] for one in samples) for name in NUMBERS)
            each = " ".join(f"{one['first_thread_us']:.1f}" for one in samples)
            lines.append([pace, path, f"{rate:,.0f}", f"{first:.1f}", f"{others:.1f}", f"{events:.3g}", each])
    return markdown(header, lines)


NUMBERS = ("first_thread_us", "other_threads_us", "tokens_an_event")


def run(options: argparse.Namespace) -> str:
    import gradus
    from gradus.bench.measure.fingerprint import commit, versions
    from gradus.doctor.machine import hardware

    made: dict[str, Any] = {
        "commit": options.commit or commit(), "hardware": hardware(), "versions": versions(),
        "tokenizer": options.tokenizer, "text": options.text and Path(options.text).name,
        "source": Path(gradus.__file__).parents[2].name, "rows": {},
    }  # fmt: skip
    for pace in options.paces:
        name = f"{pace:g} ms" if pace else "flat out"
        made["rows"][name] = measure(options, pace / 1000, LOADS[options.streams])
        made["table"] = table(made["rows"])
        options.out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(made["table"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="smollm2-135m", help="the model whose tokenizer is read")
    parser.add_argument("--text", help="a file whose tokens are the answers; without it, random ids")
    parser.add_argument(
        "--paces", type=lambda text: [float(one) for one in text.split(",")], default=[20.0, 0.0],
        help="milliseconds per step of 256 tokens, with commas between; 0: as fast as possible",
    )  # fmt: skip
    parser.add_argument("--paths", type=lambda text: text.split(","), default=[GENERATE, COMPLETIONS])
    parser.add_argument("--streams", type=int, choices=[*LOADS], default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve_mock(options.serve, options.tokenizer)
    if options.out is None:
        parser.error("--out is missing")
    print(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
