"""The log: who asked, how it ended, how much it took; never what was said."""

import contextlib
import json
import logging
import re
import sys
import time
from functools import partial

import pytest

from gradus.server.config import ServerConfig
from gradus.server.http.keys import Key, Keys, digest_of, new_key, write_keys
from gradus.server.http.record import masked
from gradus.server.logs import JsonLines, announce, set_up
from tests.server.conftest import eventually, running
from tests.server.scripted import ScriptedCore

REQUESTS = "gradus.server.requests"


def lines(caplog):
    """The fields of each request's line."""
    return [record.fields for record in caplog.records if record.name == REQUESTS]


def test_one_line_per_request_says_who_what_and_how_much(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    key = new_key()
    write_keys(tmp_path / "keys.yaml", {"alice": Key("alice", digest_of(key))})
    with running(api_keys=str(tmp_path / "keys.yaml"), log_requests=True, price_per_hour=2.0) as server:
        headers = {"x-api-key": key, "x-request-id": "my-trace.7"}
        answer = server.http.post("/generate", json={"prompt": "abc", "max_tokens": 5, "n": 2}, headers=headers)
        assert eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["id"] == answer.headers["x-request-id"] and line["client_id"] == "my-trace.7"
    assert (line["method"], line["route"], line["status"], line["key"]) == ("POST", "/generate", 200, "alice")
    assert (line["samples"], line["finish_reasons"]) == (2, {"length": 2})
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (3, 0, 10)
    assert 0 < line["ttft_s"] <= line["seconds"] and line["device_s"] > 0 and line["cost"] >= 0


def test_head_is_logged_by_its_own_name_and_its_route(serving, caplog):
    caplog.set_level(logging.INFO)
    server = serving(log_requests=True)
    server.http.head("/version")
    assert eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["method"], line["route"], line["status"]) == ("HEAD", "/version", 200)


def test_a_stream_has_its_line_when_it_is_over(serving, caplog):
    caplog.set_level(logging.INFO)
    server = serving(partial(ScriptedCore, step_s=0.005), log_requests=True)
    connection = server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}')
    assert eventually(lambda: server.engine.totals.generated_tokens > 5)
    assert not lines(caplog)
    server.leave(connection, reset=False)
    assert eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["finish_reasons"] == {"cancelled": 1} and line["completion_tokens"] > 0 and line["status"] == 200


def test_by_default_only_failures_are_logged(serving, caplog):
    caplog.set_level(logging.INFO)
    server = serving(partial(ScriptedCore, poison=13))
    server.generate(prompt="a", max_tokens=1)
    server.generate(prompt="a", max_tokens=0)
    server.generate(prompt=[13], max_tokens=1)
    assert eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["status"] == 500 and line["finish_reasons"] == {"error": 1}


SECRET = "correct horse battery staple"


def test_nothing_that_was_said_is_logged(serving, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    server = serving(partial(ScriptedCore, piece="-answer-", poison=13), log_requests=True, log_level="debug")
    server.generate(prompt=SECRET, max_tokens=5)
    server.generate(prompt=SECRET, max_tokens=5, stream=True)
    server.generate(prompt=SECRET, max_tokens=5, stop=[SECRET], cache_salt=SECRET)
    server.generate(prompt=[SECRET], max_tokens=5)
    server.generate(prompt=SECRET, temperature=SECRET)
    server.generate(prompt=SECRET, structured=SECRET)
    server.generate(prompt={"text": SECRET})
    server.http.get(f"/nowhere?{SECRET}")
    server.http.post("/v1/chat/completions", json={"messages": [SECRET]})
    server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": {"text": SECRET}}]})
    server.http.post("/generate", content=SECRET.encode())
    server.generate(prompt=[13], max_tokens=5)
    assert eventually(lambda: len(lines(caplog)) == 12)
    ours = [line for line in caplog.records if not line.name.startswith("http")]  # without the test's own client
    written = "\n".join(caplog.handler.format(line) for line in ours) + "".join(capfd.readouterr())
    assert "correct" not in written and "staple" not in written and "-answer-" not in written


def test_a_refused_request_says_why_and_where(serving, caplog):
    caplog.set_level(logging.INFO)
    server = serving(log_requests=True)
    server.generate(prompt="a", max_tokens=0)
    server.generate(prompt="a", max_token=5)
    server.generate(prompt="a", temperature="hot")
    server.http.post("/v1/chat/completions", json={"messages": []})
    server.http.post("/generate", content=b"{", headers={"content-type": "application/json"})
    assert eventually(lambda: len(lines(caplog)) == 5)
    found = [(line["status"], line.get("param"), line["error"]) for line in lines(caplog)]
    assert found[0][:2] == (400, "max_tokens") and found[0][2].endswith(", got 0")
    assert found[1] == (400, "max_token", "unknown field 'max_token'; did you mean 'max_tokens'?")
    assert found[2][:2] == (400, "temperature") and found[2][2].endswith(", got …") and "hot" not in found[2][2]
    assert found[3][:2] == (400, "messages") and found[4][1] == "body" and "line 1 column" in found[4][2]
    assert not any("path" in line for line in lines(caplog))  # the route says it


def test_a_path_without_a_route_is_logged_in_bounds_and_cannot_forge_a_line(serving, caplog):
    caplog.set_level(logging.INFO)
    server = serving(log_requests=True)
    server.http.get("/v1/embedings")
    server.http.post("/a%0a2026-01-01 WARNING forged%1b[2J", json={})
    server.http.get("/" + "x" * 5000)
    server.http.delete("/generate")
    assert eventually(lambda: len(lines(caplog)) == 4)
    paths = [line.get("path") for line in lines(caplog)]
    assert paths[:2] == ["/v1/embedings", "/a\ufffd2026-01-01 WARNING forged\ufffd[2J"]
    assert paths[2] == "/" + "x" * 98 + "…" and lines(caplog)[3]["status"] == 405
    assert paths[3] is None and lines(caplog)[3]["route"] == "/generate"
    texts = [record.getMessage() for record in caplog.records if record.name == REQUESTS]
    assert 'path="/v1/embedings" error="GET /v1/embedings: not found; GET / lists the routes"' in texts[0]
    assert all(text.isprintable() and len(text) < 600 for text in texts)


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live", "/ping", "/metrics"])
def test_probes_leave_no_line_unless_they_fail(serving, caplog, monkeypatch, path):
    caplog.set_level(logging.INFO)
    server = serving(log_requests=True)
    server.http.get(path)
    server.http.head(path)
    server.client.supervisor.state = "loading"
    server.http.get(path)
    server.client.supervisor.state = "ready"
    server.http.get("/version")
    assert eventually(lambda: lines(caplog))
    assert [line["route"] for line in lines(caplog)] == ["/version"]
    caplog.set_level(logging.DEBUG)
    server.http.get(path)
    assert eventually(lambda: len(lines(caplog)) == 2)


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        ("trace-1", "trace-1"),
        ("a" * 64, "a" * 64),
        ("a" * 65, None),
        ("two words", None),
        ("a,b", None),
        ('"},{"level":"error', None),
        ("", None),
        (b"caf\xe9", None),
    ],
)
def test_a_clients_own_id_is_a_label_if_it_is_plain_and_names_nothing(serving, caplog, sent, logged):
    caplog.set_level(logging.INFO)
    server = serving(log_requests=True)
    answers = [
        server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers={"x-request-id": sent})
        for _ in range(2)
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 2 and all(name.startswith("req-") and len(name) == 28 for name in ids)
    names = {answer.json()["id"] for answer in answers}
    assert len(names) == 2 and all(re.fullmatch(r"gen-[0-9a-f]{16}", name) for name in names)  # not to be guessed
    assert eventually(lambda: len(lines(caplog)) == 2)
    assert [line.get("client_id") for line in lines(caplog)] == [logged, logged]


def test_every_answer_has_an_id_even_that_of_a_defect(serving, monkeypatch, caplog):
    server = serving()
    for answer in (server.http.get("/"), server.http.get("/nowhere"), server.http.get("/", headers={"host": "x.org"})):
        assert answer.headers.get_list("x-request-id")[0].startswith("req-")
        assert len(answer.headers.get_list("x-request-id")) == 1
    monkeypatch.setattr(server.client, "stats", lambda: 1 / 0)
    answer = server.http.get("/stats")
    assert answer.status_code == 500 and len(answer.headers.get_list("x-request-id")) == 1
    assert eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["id"], line["status"]) == (answer.headers["x-request-id"], 500)


# -- the format --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_process_of_its_own():
    """Log as a new process would: pytest's own handlers keep `basicConfig` from doing anything."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_json_lines_are_one_object_each(capsys):
    log = logging.getLogger("gradus.test")
    with a_process_of_its_own():
        set_up(ServerConfig(log_format="json"))
        log.info("two\nlines, %s", "\u2028")
        log.info("unused", extra={"fields": {"id": "req-1", "status": 200}})
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            log.exception("broken")
    written = capsys.readouterr().err
    first, second, third = (json.loads(line) for line in written.split("\n")[:-1])
    assert first["message"] == "two\nlines, \u2028" and first["level"] == "info" and first["logger"] == "gradus.test"
    assert first["time"].endswith("Z") and len(first["time"]) == 24
    assert (second["event"], second["id"], second["status"]) == ("request", "req-1", 200) and "message" not in second
    assert third["message"] == "broken" and "ZeroDivisionError" in third["traceback"]


def test_text_is_the_default_and_levels_hold(capsys):
    with a_process_of_its_own():
        set_up(ServerConfig(log_level="warning"))
        logging.getLogger("gradus.test").info("quiet")
        logging.getLogger("gradus.test").warning("loud")
    assert capsys.readouterr().err.endswith(" WARNING gradus.test: loud\n")


def test_a_number_that_json_lacks_is_text():
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", None, None)
    record.fields = {"value": {1, 2}}
    assert json.loads(JsonLines().format(record))["value"] == "{1, 2}"


def test_a_line_outside_the_log_has_its_format_whatever_its_level(capsys):
    config = ServerConfig(log_format="json", log_level="error")
    announce(config, "gradus: serving x at http://127.0.0.1:1", sys.stdout)
    line = json.loads(capsys.readouterr().out)
    assert (line["level"], line["message"]) == ("info", "gradus: serving x at http://127.0.0.1:1")
    announce(ServerConfig(), "loading x", sys.stderr)
    assert capsys.readouterr().err == "loading x\n"


def test_a_path_of_many_words_is_masked_in_bounds():
    keys = Keys(None, "own-key-0123456789")
    assert masked("/a/own-key-0123456789/b", keys) == "/a/…/b"
    cut = "/" + "y/" * 495 + "own-key-0123456789"  # at its middle, the text is cut
    assert masked(cut, keys) == "/" + "y/" * 495
    start = time.thread_time()
    assert len(masked("/".join(f"w{number}" for number in range(10_000)), keys)) <= 1000
    assert time.thread_time() - start < 0.1
