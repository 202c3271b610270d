"""Parts that break: one request's fault stays its own, and an engine that is gone says so everywhere."""

import json
import threading
import time
from functools import partial

import pytest

from gradus.errors import CapacityError, ConfigError
from gradus.server.engine.thread import EngineThread
from tests.server.conftest import PLAIN, events, eventually, read_answer
from tests.server.scripted import ScriptedCore, register

SLOW = partial(ScriptedCore, step_s=0.01)


def in_thread(function):
    box = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()

    def result():
        thread.join(20)
        return box[0]

    return result


@pytest.mark.parametrize("stream", [False, True])
def test_one_requests_fault_is_its_own(serving, caplog, stream, numbered):
    server = serving(partial(ScriptedCore, step_s=0.01, poison=13))
    neighbor = in_thread(lambda: server.generate(prompt="a", max_tokens=30))
    assert eventually(lambda: server.engine.running)
    answer = server.generate(prompt=[7, 13], max_tokens=30, stream=stream)
    error = events(answer)[0][-1]["error"] if stream else answer.json()["error"]
    assert answer.status_code == (200 if stream else 500)
    assert error["code"] == 500 and error["type"] == "internal_error"
    assert "secret detail" not in answer.text
    told = f"request {answer.headers['x-request-id']} (gen-2): sample 0 failed: secret detail"
    assert told in caplog.text  # where the error sends its reader
    assert neighbor().json()["token_ids"] == list(range(30))
    assert server.health() == 200
    assert server.stats()["failed"] == 1


def test_a_sample_that_fails_leaves_its_siblings_streams_alone(serving):
    class OneBad(ScriptedCore):
        def _advance(self, sample):
            return self._end(sample, (), "error") if sample.index == 1 else super()._advance(sample)

    frames, done = events(serving(OneBad).generate(prompt="a", max_tokens=3, n=3, stream=True))
    endings = {frame["index"]: frame["finish_reason"] for frame in frames if "finish_reason" in frame}
    assert endings == {0: "length", 1: "error", 2: "length"}
    assert done


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "a", "n": 3}),
        ("/v1/completions", {"prompt": "a", "n": 3}),
        ("/v1/completions", {"prompt": "a", "n": 3, "stream": True}),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "stream": True}),
    ],
)
def test_a_sample_that_fails_cancels_its_siblings_where_its_error_is_the_whole_answer(serving, path, body):
    class OneBad(ScriptedCore):
        def _advance(self, sample):
            bad = sample.request.prompt == (97,) and sample.index == 1 and len(sample.tokens) == 3
            return self._end(sample, (), "error") if bad else super()._advance(sample)

    server = serving(partial(OneBad, step_s=0.01))
    answer = server.http.post(path, json={"max_tokens": 3000, **body})
    if body.get("stream"):
        frames, done = events(answer)
        assert [frame["error"]["code"] for frame in frames if "error" in frame] == ["internal_error"]
        assert "error" in frames[-1] and done
    else:
        assert answer.status_code == 500 and "shutting down" not in answer.text
    assert eventually(server.idle)
    assert server.engine.totals.generated_tokens < 1000
    assert server.client.meter.finished == {"error": 1, "cancelled": server.client.meter.entered - 1}


@pytest.mark.parametrize("times", [1, 10_000], ids=["short", "long"])
def test_a_prompt_that_breaks_the_tokenizer_breaks_nothing_else(serving, caplog, monkeypatch, times):
    def encode(text, **_):
        if text.startswith("break"):
            raise ZeroDivisionError("secret detail")
        return [1]

    server = serving()
    monkeypatch.setattr(server.engine.tokenizer, "encode", encode)
    answer = server.generate(prompt="break" * times, max_tokens=1)
    assert answer.status_code == 500
    assert "secret detail" not in answer.text and "ZeroDivision" not in answer.text
    assert "secret detail" in caplog.text  # the log has it
    assert server.generate(prompt="a", max_tokens=1).status_code == 200


def test_an_engine_that_is_full_is_an_overload(serving):
    class Full(ScriptedCore):
        def submit(self, request):
            raise CapacityError("no room")

    answer = serving(Full).generate(prompt="a", max_tokens=1)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_when_the_engine_breaks_everybody_is_told(serving, caplog):
    server = serving(partial(ScriptedCore, slots=2, step_s=0.05, faults={10: RuntimeError("secret detail")}))
    whole = [in_thread(lambda: server.generate(prompt="a", max_tokens=100)) for _ in range(3)]
    stream = in_thread(lambda: server.generate(prompt="a", max_tokens=100, stream=True))
    assert eventually(lambda: server.client.state == "failed")
    start = time.monotonic()
    answers = [result() for result in whole]
    frames, done = events(stream())
    assert time.monotonic() - start < 3  # 100 steps would take 5 s
    assert [answer.status_code for answer in answers] == [503] * 3
    assert frames[-1]["error"]["type"] == "failed" and done

    health = server.http.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "failed" and "RuntimeError" in health.json()["reason"]
    assert server.http.get("/health/live").status_code == 503  # only a restart helps now
    assert server.generate(prompt="a", max_tokens=1).status_code == 503
    assert server.stats()["state"] == "failed"
    for answer in (*answers, health):
        assert "secret detail" not in answer.text and "Traceback" not in answer.text
    assert "secret detail" in caplog.text and "Traceback" in caplog.text


def test_a_step_that_hangs_is_noticed(serving):
    server = serving(partial(ScriptedCore, hang={3: 4}), step_timeout=0.4)
    start = time.monotonic()
    answer = server.generate(prompt="a", max_tokens=10)
    assert 0.4 < time.monotonic() - start < 4
    assert answer.status_code == 503
    assert server.health() == 503
    assert "hangs" in server.http.get("/health").json()["reason"]
    assert server.generate(prompt="a", max_tokens=1).status_code == 503
    # when the step does come back, nothing runs after it
    assert eventually(lambda: not server.client._link.alive)
    assert server.engine.totals.steps == 3


def test_an_idle_engine_checks_its_books_once_and_says_so(serving):
    server = serving()
    for _ in range(3):
        server.generate(prompt="a", max_tokens=1)
    assert eventually(lambda: server.stats()["self_checks"] >= 1)
    time.sleep(0.2)  # nothing more happens, so there is nothing more to check
    assert server.stats()["self_checks"] == server.engine.checks <= 2
    assert server.stats()["failed_self_checks"] == 0


def test_books_that_do_not_balance_are_reported_and_serving_goes_on(serving, caplog):
    server = serving(partial(ScriptedCore, unbalanced=True))
    assert server.generate(prompt="a", max_tokens=1).status_code == 200
    assert eventually(lambda: server.stats()["failed_self_checks"] == 1)
    assert "self-check failed" in caplog.text and "secret detail" in caplog.text
    assert server.health() == 200
    assert server.generate(prompt="a", max_tokens=1).status_code == 200


def test_the_books_are_checked_at_most_once_a_second(serving):
    server = serving()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        server.generate(prompt="a", max_tokens=1)
        time.sleep(0.02)
    assert server.engine.checks <= 2
    assert eventually(lambda: server.stats()["self_checks"] == server.engine.checks)


def test_slow_steps_below_the_limit_are_no_alarm(serving):
    server = serving(partial(ScriptedCore, step_s=0.3), step_timeout=1.0)
    assert server.generate(prompt="a", max_tokens=5).status_code == 200
    assert server.health() == 200


def test_while_the_model_loads_http_answers(serving):
    gate = threading.Event()

    def load():
        gate.wait(10)
        return ScriptedCore()

    import httpx

    from gradus.server.client import EngineClient
    from gradus.server.config import ServerConfig
    from gradus.server.serve import Server, bind

    config = ServerConfig(model=register(load), port=0)
    client = EngineClient(config, loader="tests.server.scripted", link=EngineThread)
    server, listening = Server(config, client), bind(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert eventually(lambda: server.started)  # until it listens, connections are refused
    with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", **PLAIN) as http:
        health = http.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "loading"
        assert http.get("/health/live").status_code == 200
        refused = http.post("/generate", json={"prompt": "a"})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "loading"
        assert http.get("/stats").json()["state"] == "loading"
        gate.set()
        assert eventually(lambda: http.get("/health").status_code == 200)
    server.should_exit = True
    thread.join(10)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error():
    from gradus.server.client import EngineClient
    from gradus.server.config import ServerConfig
    from gradus.server.serve import Server, bind

    def load():
        raise ConfigError("no such phase")

    config = ServerConfig(model=register(load), port=0)
    server = Server(config, EngineClient(config, loader="tests.server.scripted", link=EngineThread))
    server.run(sockets=[bind(config)])
    assert str(server.load_error) == "no such phase"


def test_an_unexpected_error_of_the_server_itself_is_json_without_detail(serving, monkeypatch):
    server = serving()
    monkeypatch.setattr(server.client, "stats", lambda: 1 / 0)
    answer = server.http.get("/stats")
    assert answer.status_code == 500
    assert json.loads(answer.text)["error"]["code"] == 500
    assert "division" not in answer.text


def test_a_request_cancelled_before_it_was_accepted_leaves_nothing(serving, numbered):
    server = serving(partial(ScriptedCore, slots=1, step_s=0.3))
    first = server.send(b'{"prompt": "a", "max_tokens": 3}')
    assert eventually(lambda: server.engine.running)
    second = server.send(b'{"prompt": "a", "max_tokens": 3}')  # arrives in the middle of a step
    assert eventually(lambda: server.client._samples_sent == 2)
    server.leave(second, reset=True)
    assert read_answer(first)[0] == 200
    assert eventually(server.idle)
    assert server.engine.seen == ["gen-1"]
