"""--log-bodies: what clients send and get, word for word, in a file that only its owner reads."""

import json
import logging
import os
import stat
from functools import partial

import pytest

from gradus.errors import ConfigError
from gradus.server.http import bodies
from gradus.server.http.bodies import LARGEST, LARGEST_END, BodyLog, Heard
from gradus.server.http.keys import Key, digest_of, new_key, write_keys
from tests.server.conftest import eventually, running
from tests.server.scripted import ScriptedCore


def lines(file):
    """The lines that the server has written whole."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_a_line_has_the_body_and_the_answer(tmp_path, caplog):
    file = tmp_path / "bodies.jsonl"
    with running(log_bodies=str(file)) as server:
        (warning,) = [record for record in caplog.records if "log-bodies" in record.message]
        assert warning.levelno == logging.WARNING and str(file) in warning.message
        answer = server.generate(prompt="abc", max_tokens=3)
        assert eventually(lambda: lines(file))
        server.http.get("/v1/models")
    (line,) = lines(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert line["request"] == {"prompt": "abc", "max_tokens": 3} and line["answer"] == answer.json()
    assert (line["id"], line["path"], line["status"]) == (answer.headers["x-request-id"], "/generate", 200)


def test_of_a_stream_the_line_has_its_end_and_the_client_misses_nothing(tmp_path, monkeypatch):
    end = 1 << 14  # fewer bytes than the tokens have, even if a busy machine sends all of them in one frame
    monkeypatch.setattr(bodies, "LARGEST_END", end)
    file = tmp_path / "bodies.jsonl"
    with running(log_bodies=str(file)) as server:
        body = {"prompt": "a", "max_tokens": 2000, "stream": True}
        text = server.http.post("/generate", json=body).text
        assert eventually(lambda: lines(file))
    (line,) = lines(file)
    frames = [json.loads(frame.removeprefix("data: ")) for frame in text.split("\n\n")[:-2]]
    assert [token for frame in frames for token in frame["token_ids"]] == list(range(2000))
    assert text.endswith("data: [DONE]\n\n")
    assert len(text) > end and line["answer"] == text[-end:]
    assert line["cut"] == {"answer": len(text) - end} and line["request"] == body


def test_a_stream_whose_client_leaves_has_its_line(tmp_path):
    file = tmp_path / "bodies.jsonl"
    with running(partial(ScriptedCore, step_s=0.005), log_bodies=str(file)) as server:
        leaving = server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}')
        assert eventually(lambda: server.engine.totals.generated_tokens > 5)
        server.leave(leaving, reset=True)
        assert eventually(lambda: lines(file))
    (line,) = lines(file)
    assert '"token_ids":[3]' in line["answer"] and "[DONE]" not in line["answer"]


def test_refusals_are_there_and_what_is_no_json_is_text(tmp_path):
    file = tmp_path / "bodies.jsonl"
    with running(log_bodies=str(file)) as server:
        server.generate(prompt="a", max_tokens=0)
        server.http.post("/generate", content=b"{\xff\n", headers={"content-type": "application/json"})
        server.http.post("/nowhere", json={"a": 1})
        server.http.post("/generate", content=b"[" * 200_000, headers={"content-type": "application/json"})
        assert eventually(lambda: len(lines(file)) == 4)
    assert [line["status"] for line in lines(file)] == [400, 400, 404, 400]
    first, second, third, fourth = lines(file)
    assert first["answer"]["error"]["param"] == "max_tokens"
    assert second["request"] == "{\ufffd\n" and third["path"] == "/nowhere"
    assert fourth["request"] == "[" * 200_000


def test_neither_keys_nor_what_strangers_send_are_written(tmp_path):
    file, key = tmp_path / "bodies.jsonl", new_key()
    write_keys(tmp_path / "keys.yaml", {"alice": Key("alice", digest_of(key))})
    with running(log_bodies=str(file), api_keys=str(tmp_path / "keys.yaml")) as server:
        body = {"prompt": "a", "max_tokens": 1}
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"x-api-key": "wrong"}):
            server.http.post(f"/generate?key={key}", json=body, headers=headers)
        assert eventually(lambda: len(lines(file)) == 2)
    assert key not in file.read_text() and [line["key"] for line in lines(file)] == ["alice", "alice"]


def test_without_the_option_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running() as server:
        server.generate(prompt="a", max_tokens=1)
    assert list(tmp_path.iterdir()) == []


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_full_file_makes_room_and_at_most_two_are_kept(tmp_path):
    file = tmp_path / "bodies.jsonl"
    log = BodyLog(str(file), largest=300)
    for number in range(50):
        log.write({"number": number, "text": "x" * 40})
        assert file.stat().st_size <= 300
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bodies.jsonl", "bodies.jsonl.1"]
    kept = [line["number"] for path in ("bodies.jsonl.1", "bodies.jsonl") for line in lines(tmp_path / path)]
    assert kept == list(range(50))[-len(kept) :] and len(kept) > 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_two_processes_can_share_a_file_and_it_can_be_moved_away(tmp_path):
    file = tmp_path / "bodies.jsonl"
    one, other = BodyLog(str(file), largest=200), BodyLog(str(file), largest=200)
    for number in range(40):
        (one, other)[number % 2].write({"number": number})
    os.rename(file, tmp_path / "moved")
    one.write({"number": 40})
    other.write({"number": 41})
    assert [line["number"] for line in lines(file)] == [40, 41]


def test_a_file_of_others_becomes_its_owners_alone(tmp_path):
    file = tmp_path / "bodies.jsonl"
    file.write_text("{}\n")
    file.chmod(0o644)
    BodyLog(str(file)).write({"a": 1})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and lines(file) == [{}, {"a": 1}]


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "missing"])
def test_what_is_no_file_to_write_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "there"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(tmp_path / "target")
        case "missing":
            path = tmp_path / "no" / "folder"
    with pytest.raises(ConfigError, match=r"^log_bodies: cannot write .*: [^\n]+$"):
        BodyLog(str(path))
    assert not (tmp_path / "target").exists()


def test_a_full_disk_ends_no_request(tmp_path, monkeypatch, caplog):
    log = BodyLog(str(tmp_path / "bodies.jsonl"))

    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gradus.server.http.bodies.os.write", full)
    log.write({"a": 1})
    log.write({"a": 2})
    assert [record.message.split(": ")[-1] for record in caplog.records[-1:]] == ["No space left on device"]


def test_a_line_that_the_disk_has_cut_is_one_line_and_those_after_it_are_whole(tmp_path, monkeypatch, caplog):
    log, write = BodyLog(str(tmp_path / "bodies.jsonl")), os.write
    with monkeypatch.context() as full:
        full.setattr("gradus.server.http.bodies.os.write", lambda file, data: write(file, data[:5]))
        log.write({"a": 1})
    assert "a line was cut after 5 bytes" in caplog.text
    for number in (2, 3):
        log.write({"a": number})
    first, *others = (tmp_path / "bodies.jsonl").read_text().splitlines()
    assert first == '{"a":' and [json.loads(line) for line in others] == [{"a": 2}, {"a": 3}]


def test_memory_is_bounded_whatever_passes():
    whole, end = Heard(), Heard(LARGEST_END, ends=True)
    for heard in (whole, end):
        for _ in range(40):
            heard.add(b"x" * (LARGEST // 8))
            assert len(heard.kept) <= LARGEST + LARGEST // 8
    assert (len(whole.value()), len(end.value())) == (LARGEST, LARGEST_END)
