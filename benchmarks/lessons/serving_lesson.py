"""Measure p13's server: many streams, a blocked event loop, and the way of a request.

    PYTHONPATH=src:. python3 benchmarks/lessons/serving_lesson.py --out serving_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/serving_lesson.py --only way --out serving_lesson.json

The model is tiny and its weights are random: a step takes so little that what the server adds shows. Streams are read
by a process of its own. Each number of streams runs several times, in turns; the file keeps every run.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from gradus import LLM, SamplingParams
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import percentile, significant
from gradus.loading import Tokenizer
from phases.p13_serving.demo import measured
from phases.p13_serving.local import local
from phases.p13_serving.way import followed

CLIENT = Path(__file__).with_name("stream_client.py")
PHASE, MODEL, TOKENIZER = "p03", "random:tiny-llama", "smollm2-135m"
WINDOW_S = 0.01
STREAMS, TOKENS, PROMPT, REPEATS = (1, 4, 16, 64), 64, 16, 5


def summary(runs: list[list[float]]) -> dict[str, float]:
    """Of requests that were sent at once: tokens per second, and times in ms."""
    first = [1e3 * (times[1] - times[0]) for times in runs]
    gaps = [1e3 * (later - earlier) for times in runs for earlier, later in pairwise(times[1:])]
    seconds = max(times[-1] for times in runs) - min(times[0] for times in runs)
    found = {"rate": sum(len(times) - 1 for times in runs) / seconds}
    for name, values in (("ttft", first), ("itl", gaps)):
        found |= {f"{name}_p50": percentile(values, 50), f"{name}_p99": percentile(values, 99)}
    return {name: significant(value) for name, value in found.items()}


def read_by_another_process(port: int, count: int) -> Any:
    command = [sys.executable, str(CLIENT), *map(str, (port, count, PROMPT, TOKENS))]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def alone(llm: LLM, count: int) -> float:
    """Tokens per second of the same requests without a server."""
    params = SamplingParams(max_tokens=TOKENS)
    prompts = [[number + 1] * PROMPT for number in range(count)]
    start = time.perf_counter()
    done = llm.generate(prompts, params)
    return significant(sum(len(one.token_ids) for one in done) / (time.perf_counter() - start))


def streams() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"streams": count, "served": [], "alone": []} for count in STREAMS]
    most = max(STREAMS)
    llm = LLM(MODEL, phase=PHASE, device="cpu", dtype="float32", max_sequences=most, threads=1)
    with llm, local(llm.core, Tokenizer.of_bytes(), places=most) as (_, port):
        for repeat in range(REPEATS + 1):
            for row in rows:
                runs = read_by_another_process(port, row["streams"])
                rate = alone(llm, row["streams"])  # the engine's thread sleeps meanwhile
                if repeat:  # the first round warms up
                    row["served"].append(summary(runs))
                    row["alone"].append(rate)
                    print(row["streams"], row["served"][-1], rate, flush=True)
    return rows


def blocked() -> dict[str, Any]:
    """The longest gap of three streams in each window, by where a long prompt is encoded: [seconds, ms]."""
    found: dict[str, Any] = {}
    for where, points in measured(TOKENIZER).items():
        windows: dict[int, float] = {}
        for at, gap in points:
            windows[int(at / WINDOW_S)] = max(gap, windows.get(int(at / WINDOW_S), 0.0))
        found[where] = [[round(window * WINDOW_S, 3), significant(gap)] for window, gap in sorted(windows.items())]
    return found


def way() -> list[dict[str, Any]]:
    """What happened to two requests. Times in milliseconds."""
    with LLM(MODEL, phase=PHASE, device="cpu", dtype="float32", max_sequences=4) as llm:
        notes = followed(llm.core, Tokenizer.of_bytes())
    start = notes[0].at
    times = [{"at": round(1e3 * (note.at - start), 3), "until": round(1e3 * (note.until - start), 3)} for note in notes]
    return [asdict(note) | each for note, each in zip(notes, times, strict=True)]


PARTS: dict[str, Callable[[], Any]] = {"streams": streams, "blocked": blocked, "way": way}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--only", choices=PARTS, help="renew this part of the file, and keep the others")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text(encoding="utf-8")) if asked.only else {}
    about = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "model": MODEL}
    found |= about | {"phase": PHASE, "tokens": TOKENS, "prompt": PROMPT}
    found |= {name: part() for name, part in PARTS.items() if asked.only in (None, name)}
    asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
