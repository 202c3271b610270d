"""Measure latency against load: a server's steps, an open loop, a closed one, and the steps around a long prompt.

    PYTHONPATH=src:. python3 benchmarks/lessons/load_lesson.py --out load_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/load_lesson.py --only rates --out load_lesson.json

The server is `gradus serve`, with one thread for its engine and few slots, so that a queue forms on any machine; the
clients are those of `gradus load`. The live X-ray's feed gives the steps. From loads of 1 to 8 users follow the terms
of a step's time, and from them the capacity: rates are shares of it, so `rates` comes after `pace`.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.server_beside_vllm import Command, Server, free_port, serving
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import median, significant
from gradus.load.asking.routes import GENERATE, Writing
from gradus.load.asking.target import Target
from gradus.load.jobs.arrivals import at_random
from gradus.load.jobs.job import Job
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import Mix
from gradus.load.trials import Trial, Trials
from gradus.server.engine.messages import STEP
from phases.p13_serving.load.formulas import Load, spread
from phases.p13_serving.load.simulator import Pace

MODEL, SLOTS, BUDGET = "smollm2-135m", 8, 256
PROMPT, OUTPUT = (8, 24), (8, 24)
ROWS, ROWS_S = (1, 2, 4, 8), 3.0
SHARES, RATES_S, WARM_S = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15), 15.0, 1.0
USERS, USERS_S = (1, 2, 4, 8, 16, 24), 4.0
STREAMS, STREAM, SHORT, LONG = 7, 60, 8, 400  # streams, their tokens, those of their prompts, and of a late prompt
BEFORE, AFTER = 8, 16  # steps that are kept around those of the long prompt
MIX = Mix(Lengths(*PROMPT), Lengths(*OUTPUT))
Steps = list[dict[str, int]]


@contextmanager
def watched(server: Server) -> Iterator[Steps]:
    """The steps that the server takes within the block, complete once it has ended."""
    steps: Steps = []
    seen, end = threading.Event(), threading.Event()

    def read() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/xray")
        answer, last = connection.getresponse(), False
        while not last:
            last = end.is_set()  # and read one event more, which the server sends within a second
            line = answer.readline()
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                steps.extend(dict(zip(STEP, step, strict=True)) for step in event.get("steps", ()))
                seen.set()
            else:
                last = False
        connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    assert seen.wait(10), "the server shows nothing"
    try:
        yield steps
    finally:
        time.sleep(0.3)  # ten events come each second
        end.set()
        reader.join()


def durations(steps: Steps) -> list[tuple[int, int, float]]:
    """(rows that decoded, tokens of prompts, ms) of the steps that another one followed at once.

    A step lasts until the next one begins: on a CPU the host is the device, and computes while it launches.
    """
    busy = (pair for pair in pairwise(steps) if pair[1]["start"] < pair[0]["end"] + 2000)
    return [
        (step["decode"], step["prefill"], (after["start"] - step["start"]) / 1e3)
        for step, after in busy
        if after["number"] == step["number"] + 1
    ]


def fitted(found: list[tuple[int, int, float]]) -> dict[str, Any]:
    """The terms of a step's time in ms, and the medians that they come from.

    A line through the medians of steps without prompts, by rows, gives `fixed` and `row`, each median with the weight
    of its steps; a prompt's token has what the others take longer, in the median. A disturbed step would move a mean.
    """
    by_rows = {
        rows: [ms for count, tokens, ms in found if count == rows and not tokens] for rows in range(1, SLOTS + 1)
    }
    steps = [(rows, median(times), len(times)) for rows, times in by_rows.items() if len(times) > 4]
    weights = [count**0.5 for *_, count in steps]
    row, fixed = np.polyfit([rows for rows, *_ in steps], [ms for _, ms, _ in steps], 1, w=weights).tolist()
    token = median([(ms - fixed - row * rows) / tokens for rows, tokens, ms in found if tokens])
    terms = {"fixed": significant(fixed), "row": significant(row), "token": significant(token)}
    return terms | {"steps": [[rows, significant(ms), count] for rows, ms, count in steps]}


def pace_of(found: dict[str, Any]) -> Pace:
    terms = found["pace"]
    return Pace(terms["fixed"] / 1e3, terms["row"] / 1e3, terms["token"] / 1e3, SLOTS, BUDGET)


def expected(found: dict[str, Any]) -> Load:
    return Load(pace_of(found), sum(PROMPT) / 2, sum(OUTPUT) / 2, spread(*OUTPUT))


# -- the parts ---------------------------------------------------------------------------------------------------------


def pace(server: Server, trials: Trials, found: dict[str, Any]) -> dict[str, Any]:
    """Take the steps of closed loops."""
    taken: list[tuple[int, int, float]] = []
    for users in ROWS:
        with watched(server) as steps:
            _for_seconds(trials, users, ROWS_S, "pace")
        taken += durations(steps)
        print(f"{users} users: {len(steps)} steps", flush=True)
    return fitted(taken)


def rates(server: Server, trials: Trials, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Open loops below and above the capacity."""
    rows = []
    for share in SHARES:
        rate = significant(share * expected(found).capacity)
        count = max(20, round(rate * (RATES_S + WARM_S)))
        jobs = MIX.jobs(at_random(count, rate, Random(f"rate {share}")), trials.vocab_size, f"rate {share}")
        rows.append(_kept(trials.send(jobs, rate=rate, warmup=WARM_S)))
        print(rows[-1], flush=True)
    return rows


def users(server: Server, trials: Trials, found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [_kept(_for_seconds(trials, each, USERS_S, "users")) for each in USERS]
    print(rows, flush=True)
    return rows


def steps(server: Server, trials: Trials, found: dict[str, Any]) -> dict[str, Any]:
    """A long prompt arrives among streams. Times in ms, from the first step that is kept."""
    ids = Random("steps").random
    jobs = [Job(0.0, _prompt(ids, SHORT, trials.vocab_size), STREAM) for _ in range(STREAMS)]
    jobs.append(Job(0.0, _prompt(ids, LONG, trials.vocab_size), 8, late=True))
    with watched(server) as taken:
        trial = trials.send(jobs)
    chunks = [place for place, step in enumerate(taken) if step["prefill"] and step["decode"] == STREAMS]
    kept = taken[max(0, chunks[0] - BEFORE) : chunks[-1] + AFTER]
    began = kept[0]["start"]
    rows = [
        [round((step[name] - began) / 1e3, 2) for name in ("start", "end")] + [step["decode"], step["prefill"]]
        for step in kept
    ]
    gaps = [1e3 * max(answer.gaps) for answer in trial.answers[:STREAMS]]
    return {"steps": rows, "longest_gap": significant(max(gaps)), "ttft": significant(1e3 * trial.answers[-1].ttft)}


def _prompt(random: Callable[[], float], length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(int(random() * vocab_size) for _ in range(length))


def _for_seconds(trials: Trials, users: int, seconds: float, seed: str) -> Trial:
    """A closed loop of about so long: a first, short one says how many requests that takes."""

    def send(count: int) -> Trial:
        return trials.send(MIX.jobs([0.0] * count, trials.vocab_size, f"{seed} {users} {count}"), users=users)

    first = send(3 * users)
    pace = len(first.answers) / (max(answer.last for answer in first.answers) - first.run.start)
    return send(max(4 * users, round(seconds * pace)))


def _kept(trial: Trial) -> dict[str, Any]:
    record = trial.record([50.0, 99.0])
    names = ("rate", "users", "requests", "completed", "requests_s", "ttft_ms", "tpot_ms", "late_ms_p99")
    return {name: record[name] for name in names}


PARTS: dict[str, Callable[[Server, Trials, dict[str, Any]], Any]] = {
    "pace": pace, "rates": rates, "steps": steps, "users": users,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--only", choices=PARTS, help="renew this part of the file, and keep the others")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text(encoding="utf-8")) if asked.only else {}
    about = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "model": asked.model}
    found |= about | {"slots": SLOTS, "budget": BUDGET, "prompt": PROMPT, "output": OUTPUT}
    port = free_port()
    command = [
        *(sys.executable, "-m", "gradus", "serve", "--model", asked.model, "--device", "cpu", "--port", str(port)),
        *("--max-sequences", str(SLOTS), "--token-budget", str(BUDGET), "--threads", "1", "--log-level", "warning"),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Command(command, "/health/ready"), Path(asked.model), port, Path(folder) / "server.txt") as server,
    ):
        vocab = json.loads(server.get("/stats"))["vocab_size"]
        trials = Trials(Target("127.0.0.1", port), Writing(GENERATE), vocab, timeout=120.0)
        _for_seconds(trials, SLOTS, 1.0, "warm")
        for name, part in PARTS.items():
            if asked.only in (None, name):
                found[name] = part(server, trials, found)
                asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
