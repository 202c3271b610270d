"""Text is the event loop's: nothing of it happens on the engine's thread, and a long prompt holds nothing up."""

import json
import threading
import time
from functools import partial

import pytest

from gradus.server.api.frames import encode, event
from tests.server.conftest import events, eventually, read_answer
from tests.server.scripted import ScriptedCore

LONG = "a" * 100_000  # characters


class Recorder:
    """A tokenizer that keeps the names of the threads that used it, and takes its time for long texts."""

    def __init__(self, tokenizer, seconds=0.0):
        self.tokenizer, self.seconds, self.threads, self.encoding = tokenizer, seconds, set(), threading.Event()
        self.special_token_ids = tokenizer.special_token_ids

    def encode(self, text, *, special_tokens=True):
        self.threads.add(threading.current_thread().name)
        if len(text) == len(LONG):
            self.encoding.set()
            time.sleep(self.seconds)
            return [1, 2, 3]
        return self.tokenizer.encode(text, special_tokens=special_tokens)

    def token_bytes(self, token):
        self.threads.add(threading.current_thread().name)
        return self.tokenizer.token_bytes(token)


def scripted(seconds=0.0, **settings):
    core = ScriptedCore(**settings)
    core.tokenizer = Recorder(core.tokenizer, seconds)
    return core


def in_background(function):
    box = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()
    return lambda: (thread.join(20), box[0])[1]


def test_no_text_is_touched_on_the_engines_thread(serving):
    server = serving(scripted)
    for prompt in ("short", LONG):
        assert server.generate(prompt=prompt, max_tokens=3).status_code == 200
    threads = server.engine.tokenizer.threads
    assert "engine" not in threads and any(name.startswith("front-end") for name in threads) and len(threads) == 2


def test_while_a_long_prompt_is_encoded_streams_and_the_engine_go_on(serving):
    server = serving(partial(scripted, seconds=2, step_s=0.01))
    long = in_background(lambda: server.generate(prompt=LONG, max_tokens=2))
    assert server.engine.tokenizer.encoding.wait(5)
    start = time.monotonic()
    assert server.generate(prompt="short", max_tokens=10).status_code == 200
    assert server.health() == 200
    assert time.monotonic() - start < 1.5
    answer = long()
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 3
    assert eventually(server.idle)


def test_a_long_prompt_counts_as_waiting_from_its_arrival(serving):
    server = serving(partial(scripted, seconds=0.4), max_waiting=1)
    long = in_background(lambda: server.generate(prompt=LONG, max_tokens=2))
    assert server.engine.tokenizer.encoding.wait(5)
    assert server.stats()["waiting"] == 1
    assert server.generate(prompt="short", max_tokens=1).status_code == 503
    assert long().status_code == 200
    assert eventually(server.idle)


def test_the_time_of_a_long_prompt_runs_while_it_is_encoded(serving):
    server = serving(partial(scripted, seconds=0.4))
    assert server.generate(prompt=LONG, max_tokens=2, timeout=0.2).status_code == 504
    assert server.engine.seen == []
    assert eventually(server.idle)


def test_a_client_that_leaves_while_its_prompt_is_encoded_costs_the_engine_nothing(serving):
    server = serving(partial(scripted, seconds=0.3))
    connection = server.send(b'{"prompt": "%s", "max_tokens": 3}' % LONG.encode())
    assert server.engine.tokenizer.encoding.wait(5)
    server.leave(connection, reset=True)
    assert eventually(server.idle)
    assert server.engine.seen == [] and server.stats()["abandoned"] == 1


def test_a_long_prompt_that_cannot_be_served_gives_its_place_back(serving):
    server = serving(scripted, max_waiting=1)
    for _ in range(2):
        error = server.generate(prompt=[1] * 5000, max_tokens=1)  # more than the context
        assert error.status_code == 400 and error.json()["error"]["param"] == "prompt"
    assert server.idle()
    assert server.generate(prompt="short", max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_its_sample_in_the_engine_and_what_came_after_it_is_dropped(serving, numbered, stream):
    server = serving(partial(scripted, step_s=0.02))
    answer = server.generate(prompt="a", max_tokens=4000, n=2, stop=["5 "], stream=stream)
    if stream:
        frames, done = events(answer)
        assert done
        texts = ["".join(frame["text"] for frame in frames if frame["index"] == index) for index in (0, 1)]
        usage, reasons = frames[-1]["usage"], {f["stop_reason"] for f in frames if f.get("finish_reason") == "stop"}
    else:
        content = answer.json()
        texts = [choice["text"] for choice in content["choices"]]
        usage, reasons = content["usage"], {choice["stop_reason"] for choice in content["choices"]}
    assert texts == ["0 1 2 3 4 ", "1 2 3 4 "] and reasons == {"5 "}
    assert usage["completion_tokens"] == 6 + 5
    assert sorted(server.engine.cancelled) == [("gen-1", 0, "stop"), ("gen-1", 1, "stop")]
    assert server.engine.spent["gen-1"] < 30  # the engine heard of it within a few steps
    assert eventually(server.idle)


def test_others_go_on_when_a_stop_string_ends_one(serving):
    server = serving(partial(scripted, step_s=0.005))
    other = server.send(b'{"prompt": "a", "max_tokens": 60}')
    assert server.generate(prompt="b", max_tokens=60, stop=["3 "]).json()["text"] == "0 1 2 "
    status, _, body = read_answer(other)
    assert status == 200 and b'"completion_tokens":60' in body


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085"])
def test_no_frame_has_a_line_end_that_some_clients_see(end):
    """httpx splits a stream as `str.splitlines` does."""
    content = {"text": f"a{end}b", end: ["é", end]}
    assert len(event(content).decode().splitlines()) == 2
    assert json.loads(encode(content)) == content and "é".encode() in encode(content)
