"""Measure what hostile neighbors cost a stream: its longest gaps, against those that ordinary neighbors leave.

    python benchmarks/hostile.py --model smollm2-135m --out benchmarks/hostile.json
    python benchmarks/hostile.py --model qwen2.5-coder-0.5b --kinds --long-prompt 8800 --out benchmarks/long_prompt.json

A server runs in processes of its own, on this machine. One client reads a stream and notes when each token arrives.
Meanwhile two connections send requests of one kind, as fast as they are answered: ordinary ones (a short prompt, a few
tokens) or hostile ones (a schema that was never seen, long stop strings that nearly match, a body of a million
brackets). Kinds take turns with ordinary requests, so each has a comparison of the same minute: any request shares the
steps and the processors with the stream, and the ratio says what the hostile one costs beyond that.

`--long-prompt N` measures what a single prompt of N tokens costs its neighbors: the gaps of a stream while it is read,
and the first token of short prompts that arrive behind it.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran

SECONDS, ROUNDS, CONNECTIONS = 8.0, 3, 2
TOKENS = 16
SHORT, SHORT_REQUESTS = 30, 6
"""Tokens of a short prompt behind a long one, and how many arrive, one after the other."""
PATTERN = "^[A-Z]{3}-[0-9]{4,8}(_[a-z]+)*$"

Body = dict[str, Any] | bytes
Kind = Callable[[int], tuple[str, Body]]
"""Makes a route and a body, from the request's number."""


def ordinary(number: int) -> tuple[str, Body]:
    return "/generate", {"prompt": f"Number {number} is", "max_tokens": TOKENS}


def new_schema(number: int) -> tuple[str, Body]:
    fields = {f"field_{number}_{each}": {"type": "string", "pattern": PATTERN} for each in range(200)}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return "/generate", {"prompt": "As JSON: ", "max_tokens": TOKENS, "structured": {"json_schema": schema}}


def near_stops(number: int) -> tuple[str, Body]:
    stops = ["a" * 255 + chr(98 + each) for each in range(16)]
    return "/generate", {"prompt": "a" * 20, "max_tokens": TOKENS, "stop": stops, "logit_bias": {"81": 100}, "n": 8}


def brackets(number: int) -> tuple[str, Body]:
    return "/generate", b'{"prompt": ' + (b"[" * 60 + b"]" * 60 + b",") * 8000 + b"}"


def prompt_scores(number: int) -> tuple[str, Body]:
    return "/generate", {
        "prompt": [(7 * number + each) % 4096 for each in range(2000)],
        "max_tokens": 1,
        "prompt_logprobs": 20,
    }


def long_prompt(number: int) -> tuple[str, Body]:
    path, body = prompt_scores(number)
    assert isinstance(body, dict)
    return path, {name: value for name, value in body.items() if name != "prompt_logprobs"}


def texts_to_encode(number: int) -> tuple[str, Body]:
    return "/tokenize", {"prompt": f"{number} lorem ipsum " * 60_000}


def large_answer(number: int) -> tuple[str, Body]:
    return "/generate", {"prompt": "a", "max_tokens": 100, "n": 8, "logprobs": 20, "ignore_eos": True}


KINDS: dict[str, Kind] = {
    each.__name__: each for each in (new_schema, near_stops, brackets, prompt_scores, texts_to_encode, large_answer)
}
WITHOUT: dict[str, Kind] = {"prompt_scores": long_prompt}
"""Comparisons other than `ordinary`: the same request without its hostile part."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--long-prompt", type=int, metavar="TOKENS")
    parser.add_argument("--options", default="", help="further options of the server, in one text")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    with served(asked.model, *asked.options.split()) as (port, process):
        first = gaps(port, new_schema, 4.0)  # the first structured request of a server
        rows = [measured(port, KINDS[name], asked.seconds, asked.rounds) for name in asked.kinds]
        crowd = {"long_prompt": behind(port, asked.long_prompt)} if asked.long_prompt else {}
        memory = {"mib": {each: round(value) for each, value in resident(process).items()}}
    made = {
        "commit": asked.commit or commit(), "model": asked.model, **fingerprint(torch.device("cpu"), quick=True),
        "seconds": asked.seconds, "rounds": asked.rounds, "connections": CONNECTIONS,
        "first_structured": summary(first), "kinds": rows, **crowd, **memory,
    }  # fmt: skip
    for row in rows:
        print(
            f"{row['kind']:16} {row['longest_of_ordinary']:6} x  hostile {row['hostile']}  ordinary {row['ordinary']}"
        )
    for name, found in crowd.get("long_prompt", {}).items():
        print(f"{name:16} {found}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return 0


@contextlib.contextmanager
def served(model: str, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    """Serve the model, on a port that the system chooses."""
    command = [sys.executable, "-m", "gradus", "serve", "--model", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # once the model is loaded
        assert line, "the server did not start"
        yield int(line.split("http://127.0.0.1:")[1].split()[0]), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def resident(process: psutil.Process) -> dict[str, float]:
    """The MiB of the front end and of the engine."""
    children = process.children(recursive=True)
    return {
        "front_end": process.memory_info().rss / 2**20,
        "engine": sum(each.memory_info().rss for each in children) / 2**20,
    }


def asked_for(port: int, method: str, path: str, body: Body | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def measured(port: int, kind: Kind, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure a kind and ordinary requests in turns."""
    mine, theirs = list[list[float]](), list[list[float]]()
    plainly = WITHOUT.get(kind.__name__, ordinary)
    for number in range(rounds):
        for each, found in ((kind, mine), (plainly, theirs))[:: 1 if number % 2 else -1]:
            found.append(gaps(port, each, seconds))
    hostile, plain = summary(*mine), summary(*theirs)
    ratio = hostile["longest_ms"] / plain["longest_ms"]
    return {"kind": kind.__name__, "hostile": hostile, "ordinary": plain, "longest_of_ordinary": round(ratio, 2)}


def summary(*rounds: list[float]) -> dict[str, Any]:
    """Medians over rounds, in milliseconds."""
    ordered = [sorted(each) for each in rounds]
    return {
        "p50_ms": round(median(each[len(each) // 2] for each in ordered), 1),
        "p99_ms": round(median(each[int(len(each) * 0.99)] for each in ordered), 1),
        "longest_ms": round(median(each[-1] for each in ordered), 1),
        "tokens": sum(len(each) for each in ordered),
    }


def behind(port: int, tokens: int) -> dict[str, Any]:
    """Measure a stream while a prompt of this many tokens is read, then short prompts behind another, without it."""
    times, done = list[float](), threading.Event()

    def read() -> None:
        for arrived in stream(port):
            times.append(arrived)
            if done.is_set():
                return

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(read)
        time.sleep(2.0)
        began = time.monotonic()
        alone = [each for each in times if each < began]
        until_first = first_token(port, unrelated(tokens))
        ended = time.monotonic()
        done.set()
        reader.result()
        beside = [each for each in times if began <= each <= ended]
        long, waits = pool.submit(first_token, port, unrelated(tokens)), list[float]()
        time.sleep(1.0)
        for _ in range(SHORT_REQUESTS):
            waits.append(first_token(port, unrelated(SHORT)))
            time.sleep(1.0)
        assert not long.done(), "the long prompt ended too soon: give it more tokens"
        long.result()
    return {
        "tokens": tokens,
        "stream_alone": gaps_of(alone),
        "stream_beside_it": gaps_of(beside),
        "its_first_token_s": round(until_first, 1),
        "first_token_behind_it_ms": {"median": round(1e3 * median(waits)), "longest": round(1e3 * max(waits))},
        "its_first_token_alone_s": round(first_token(port, unrelated(tokens)), 1),
    }


def gaps_of(times: list[float]) -> dict[str, int]:
    ordered = sorted(1e3 * (after - before) for before, after in itertools.pairwise(times))
    return {
        "p50_ms": round(ordered[len(ordered) // 2]),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)]),
        "longest_ms": round(ordered[-1]),
        "tokens": len(ordered),
    }


def unrelated(tokens: int) -> list[int]:
    """Draw a prompt whose beginning no other one has."""
    return [draw.randrange(4096) for _ in range(tokens)]


def first_token(port: int, prompt: list[int]) -> float:
    """Return the seconds from the request to its first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.monotonic()
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": True}
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    while line := answer.readline():
        if line.startswith(b"data: {"):
            seconds = time.monotonic() - began
            answer.read()
            connection.close()
            return seconds
    raise RuntimeError("no token arrived")


draw = random.Random(0)
numbers = itertools.count()


def gaps(port: int, kind: Kind, seconds: float) -> list[float]:
    """Read a stream for that long while two connections send requests of this kind. Returns its gaps in ms."""
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            status, answer = asked_for(port, "POST", *kind(next(numbers)))
            if status >= 500 and status != 503:
                raise RuntimeError(f"{kind.__name__}: status {status}: {answer[:300]!r}")

    found = list[float]()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        senders: list[Future[None]] = []
        try:
            for arrived in stream(port):
                if not found:
                    senders = [pool.submit(send) for _ in range(CONNECTIONS)]
                found.append(arrived)
                if arrived - found[0] > seconds:
                    break
        finally:
            done.set()
        for each in senders:
            each.result()  # raises what a sender met
    return [1e3 * (after - before) for before, after in itertools.pairwise(found)]


def stream(port: int) -> Iterator[float]:
    """Yield the times at which tokens arrive, in one stream after the other."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data: {"):
                yield time.monotonic()
        connection.close()


if __name__ == "__main__":
    sys.exit(ran(main))
