"""Requests that all differ fill no memory: after many, both processes are as large as after a few."""

import http.client
import itertools
import json
import random
from functools import partial
from pathlib import Path

import pytest

from tests.fuzz.running import Served, in_threads, served

CONNECTIONS = 6
GROWTH_MIB = 16  # of either process, between a third of the requests and all of them: the tokenizer keeps 10,000 words


def different(number: int) -> tuple[str, dict]:
    """A request that shares no choice of its client with any other."""
    draw = random.Random(number)
    name = f"{number}-{draw.random()}"
    body = {
        "prompt": [draw.randrange(256) for _ in range(draw.randint(1, 9))],
        "max_tokens": 2,
        "seed": number,
        "temperature": 0.5 + number / 1e7,
        "stop": [name, name[::-1]],
        "stop_token_ids": draw.sample(range(258, 320), 5),  # no bytes, which a grammar may need
        "logit_bias": {str(draw.randrange(320)): number / 1e6},
        "cache_salt": name,
        "timeout": 60 + number / 1e5,
    }
    match number % 20:
        case 0:
            return "/generate", body | {"structured": {"regex": f"[a-f]{{1,3}}{number}"}}
        case 1:
            schema = {"type": "object", "properties": {name: {"type": "integer"}}}
            return "/generate", body | {"structured": {"json_schema": schema}}
        case 2:
            tool = {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}
            message = {"role": "user", "content": name}
            return "/v1/chat/completions", {
                "messages": [message],
                "max_tokens": 2,
                "tools": [tool],
                "user": name,
                "model": name,
            }
        case 3:
            return f"/v1/no-such-route/{name}", body
        case 4:
            return "/tokenize", {"prompt": name}
        case _:
            return "/generate", body


def send(server: Served, numbers: "itertools.count[int]", last: int) -> None:
    """Send different requests on one connection, until `last` have been sent on all."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while (number := next(numbers)) < last:
        path, body = different(number)
        connection.request(
            "POST", path, json.dumps(body), {"Content-Type": "application/json", "X-Request-Id": str(number)}
        )
        answer = connection.getresponse()
        server.judge("POST", path, json.dumps(body).encode(), answer.status, answer.read())
    connection.close()


def sent(server: Served, first: int, last: int) -> list[float]:
    """Send the requests [first, last). Returns the MiB of the front end and of the engine afterwards."""
    numbers = itertools.count(first)
    in_threads(*[partial(send, server, numbers, last)] * CONNECTIONS)
    return [process.memory_info().rss / 2**20 for process in (server.process, *server.process.children())]


@pytest.mark.parametrize("count", [900, pytest.param(100_000, marks=pytest.mark.stress)])
@pytest.mark.timeout(3600)
def test_requests_that_all_differ_leave_nothing_behind(count, tmp_path):
    with served(Path(tmp_path / "log"), "--max-sequences", "32", "--switch-off", "kernels") as server:
        before = sent(server, 0, count // 3)
        after = sent(server, count // 3, count)
        assert server.stats()["cache"]["held"] == 0
    assert server.faults == [] and server.statuses[200] > 0.9 * count
    assert max(late - early for early, late in zip(before, after, strict=True)) < GROWTH_MIB, (before, after)
