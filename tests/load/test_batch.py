"""Batches: each request gets one line, however often a run is interrupted; bad lines are named; refusals waited for."""

import asyncio
import json
import os
import threading
import time

import pytest

from gradus.errors import ConfigError
from gradus.load.asking.target import Target
from gradus.load.batch.lines import Asked, Invalid, read, resume
from gradus.load.batch.sending import Rules, Sending
from tests.cli.conftest import gradus, wide_terminal  # noqa: F401  (fixtures)
from tests.load.server import refusal, scripted
from tests.server.conftest import running
from tests.server.scripted import ScriptedCore


def line(name, **others) -> dict:
    body = {"model": "scripted", "prompt": "ab", "max_tokens": 3}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body} | others


def written(file, *rows):
    file.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return file


def found(file) -> list[dict]:
    return [json.loads(row) for row in file.read_text().splitlines()]


def whole(body: dict) -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nx-request-id: req-1\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


def send(target, folder, rows, **rules):
    file, out = written(folder / "in.jsonl", *rows), folder / "out.jsonl"
    output = resume(out)
    with out.open("ab") as stream:
        counts = Sending(target, output.without(read(file)), stream, Rules(**{"pause": 0.01} | rules)).run()
    return counts, found(out)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"7", "must be a JSON object, got int"),
        ({}, "custom_id must be a text"),
        (line(7), "custom_id must be a text"),
        (line("x" * 513), "custom_id must be a text"),
        (line("x", method="GET"), "method must be POST, got 'GET'"),
        (line("x", url="http://example.org/v1/x"), "url must be a path"),
        (line("x", url="/v1/x HTTP/1.1\r\nHost: y"), "url must be a path"),
        (line("x", url="/metrics"), "url must be a path"),
        (line("x", body=[]), "body must be a JSON object"),
        (line("x", body={"stream": True}), "body.stream must be false"),
        (line("first"), "custom_id 'first' is already that of line 1"),
    ],
)
def test_a_line_that_is_no_request_is_invalid_and_says_why(tmp_path, row, why):
    one, bad, last = read(written(tmp_path / "in", line("first"), row, line("last")))
    assert isinstance(one, Asked) and isinstance(bad, Invalid) and bad.number == 2 and why in bad.why
    assert (last.number, last.custom_id, last.path) == (3, "last", "/v1/completions")


def test_every_line_gets_one_line_in_openais_form(tmp_path):
    rows = [line(f"r{number}") for number in range(5)] + [
        b"{",
        line("r0"),
        b"",
        line("bad", body={"prompt": "x", "max_tokens": -1}),
    ]
    with running() as server:
        counts, lines = send(Target.at(server.url), tmp_path, rows)
    assert (counts.succeeded, counts.failed, counts.invalid, counts.left) == (5, 1, 2, 0)
    answers = {one["custom_id"]: one for one in lines if one["custom_id"]}
    assert answers.keys() == {"r0", "r1", "r2", "r3", "r4", "bad"} and len(lines) == 8
    assert len({one["id"] for one in lines}) == 8
    good = answers["r3"]
    assert good["error"] is None and good["response"]["status_code"] == 200
    assert good["response"]["body"]["choices"][0]["text"] == "0 1 2 "
    assert good["response"]["request_id"].startswith("req-")
    assert answers["bad"]["response"]["status_code"] == 400 and "max_tokens" in str(answers["bad"]["response"]["body"])
    invalid = [one["error"] for one in lines if not one["custom_id"]]
    assert [one["line"] for one in sorted(invalid, key=lambda one: one["line"])] == [6, 7]
    assert all(one["code"] == "invalid_line" and f"line {one['line']} " in one["message"] for one in invalid)


def test_a_run_goes_on_where_another_ended_even_within_a_line(tmp_path):
    asked = []

    async def says(body, number, write):
        asked.append(body["prompt"])
        await write(whole({"echo": body["prompt"]}))

    rows = [line(str(number), body={"prompt": str(number)}) for number in range(6)] + [b"nonsense"]
    with scripted(says) as server:
        send(server.target, tmp_path, rows)
        out = tmp_path / "out.jsonl"
        lines = out.read_bytes().splitlines(keepends=True)
        kept = [one for one in lines if json.loads(one)["custom_id"] in ("1", "4", None)]
        out.write_bytes(b"".join(kept) + lines[0][:25])
        asked.clear()
        counts, lines = send(server.target, tmp_path, rows)
    assert sorted(asked) == ["0", "2", "3", "5"] and counts.succeeded == 4 and counts.invalid == 0
    assert sorted(str(one["custom_id"]) for one in lines) == ["0", "1", "2", "3", "4", "5", "None"]


def test_a_file_that_is_no_output_is_left_as_it_is(tmp_path):
    file = written(tmp_path / "notes", b"dear diary")
    with pytest.raises(ConfigError, match="line 1: is no line of a batch's output"):
        resume(file)
    assert file.read_bytes() == b"dear diary\n"


def test_no_room_is_waited_for_as_long_as_the_server_says(tmp_path):
    times = []

    async def says(body, number, write):
        times.append(time.monotonic())
        busy = {0: refusal(429, "slow down", "Retry-After: 1"), 1: refusal(503, "full")}
        await write(busy.get(number) or whole({}))

    with scripted(says) as server:
        counts, lines = send(server.target, tmp_path, [line("a")], at_once=1)
    assert counts.succeeded == 1 and len(lines) == 1 and len(times) == 3
    assert times[1] - times[0] >= 1.0 and times[2] - times[1] < 1.0


def test_a_request_that_finds_no_room_stops_the_run_and_is_left_for_the_next(tmp_path):
    async def says(body, number, write):
        await write(refusal(503, "full") if number >= 2 else whole({}))

    with scripted(says) as server:
        counts, lines = send(server.target, tmp_path, [line(str(n)) for n in range(9)], at_once=1, tries=3)
        assert (counts.succeeded, counts.left, len(lines), len(server.bodies)) == (2, 7, 2, 5)
    assert counts.why == "2: the server answers 503: full"


def test_a_connection_that_breaks_is_tried_again_and_a_server_that_is_gone_is_said(tmp_path):
    async def says(body, number, write):
        if number == 0:
            raise ConnectionError
        await write(whole({}))

    with scripted(says) as server:
        counts, _ = send(server.target, tmp_path, [line("a")], at_once=1)
        assert counts.succeeded == 1
    counts, lines = send(server.target, tmp_path, [line("a"), line("b")], at_once=1, tries=2)
    assert counts.left == 1 and "b: " in counts.why and len(lines) == 1


def test_requests_under_way_are_bounded(tmp_path):
    async def says(body, number, write):
        await asyncio.sleep(0.02)
        await write(whole({}))

    with scripted(says) as server:
        counts, _ = send(server.target, tmp_path, [line(str(n)) for n in range(20)], at_once=3)
        assert counts.succeeded == 20 and server.most == 3 == server.connections


def test_a_full_disk_ends_the_run(tmp_path):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def flush(self): ...

    async def says(body, number, write):
        await write(whole({}))

    with scripted(says) as server, pytest.raises(OSError, match="No space"):
        Sending(server.target, read(written(tmp_path / "in", line("a"), line("b"))), Full(), Rules()).run()


def test_the_command_answers_a_file_and_its_exit_code_says_how(tmp_path, gradus):  # noqa: F811
    good, out = written(tmp_path / "in.jsonl", *(line(str(n)) for n in range(3))), tmp_path / "answers" / "out.jsonl"
    mixed = written(tmp_path / "mixed.jsonl", line("a"), b"{")
    with running(lambda: ScriptedCore(slots=2)) as server:
        done = gradus("batch", good, out, "--url", server.url)
        again = gradus("batch", good, out, "--url", server.url)
        wrong = gradus("batch", mixed, tmp_path / "other.jsonl", "--url", server.url)
        assert server.stats()["completed"] == 4
    assert done.code == 0 and done.out.endswith("\n3 answered\n") and (again.code, again.out) == (0, "3 answered\n")
    assert (wrong.code, wrong.out) == (1, "1 answered · 1 no request\n")
    assert len(found(out)) == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--url", "http://example.org"), "must be the address of a server on this machine"),
        (("--url", "http://127.0.0.1:1"), "no answer from"),
        (("--device", "cpu"), "device is of an engine of its own: add --model"),
        (("--model", "m", "--url", "http://127.0.0.1:1"), "choose one of them"),
        (("--concurrency", "0"), "--concurrency must be 1 to 1024"),
        (("--tries", "0"), "--tries must be"),
    ],
)
def test_mistakes_are_one_line(tmp_path, gradus, options, why):  # noqa: F811
    file = written(tmp_path / "in.jsonl", line("a"))
    done = gradus("batch", file, tmp_path / "out.jsonl", *options)
    assert done.code == 2 and why in done.err and done.err.count("\n") == 1 and not (tmp_path / "out.jsonl").exists()


def test_files_that_cannot_be_read_or_are_one_are_refused(tmp_path, gradus):  # noqa: F811
    file = written(tmp_path / "in.jsonl", line("a"))
    assert "cannot be read" in gradus("batch", tmp_path / "none", tmp_path / "out.jsonl").err
    assert "holds the requests" in gradus("batch", file, file).err and found(file) == [line("a")]


def test_an_engine_of_its_own_answers_and_leaves_nothing_behind(tmp_path, gradus):  # noqa: F811
    rows = [
        line("a", url="/generate", body={"prompt": [1, 2], "max_tokens": 2}),
        line("b", body={"model": "any-name", "prompt": "x", "max_tokens": 2}),
        line("c", url="/v1/completions", body={"prompt": "x", "max_tokens": 2}),
    ]
    file, out, threads = written(tmp_path / "in.jsonl", *rows), tmp_path / "out.jsonl", threading.active_count()
    done = gradus("batch", file, out, "--model", "random:tiny-llama", "--device", "cpu", "--context-length", "64")
    assert done.code == 0 and done.out == "3 answered\n", done.err
    assert {one["custom_id"] for one in found(out)} == {"a", "b", "c"} and threading.active_count() == threads
    assert not [name for name in os.listdir(tmp_path) if name not in ("in.jsonl", "out.jsonl")]


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path, gradus):  # noqa: F811
    file = written(tmp_path / "in.jsonl", line("a"))
    done = gradus("batch", file, tmp_path / "out.jsonl", "--model", "random:no-such-shape", "--device", "cpu")
    assert done.code == 2 and "no-such-shape" in done.err
