"""Signals: what runs gets its time, then its last word; the exit code says how it went. The processes are real."""

import os
import signal
import socket
import threading
import time

import httpx
import pytest

from gradus.server.config import ServerConfig
from gradus.server.serve import leaves_on_failure
from tests.pairwise import first
from tests.ports import free_port
from tests.server.conftest import PLAIN, Process, events, eventually

SOON = 10  # seconds: enough for a process to end on a busy machine, and far from a drain_timeout that is waited for
STREAM = {"prompt": "a", "max_tokens": 100, "stream": True}


def stream_in_background(url, body=STREAM):
    """Start a streaming request; returns (its first frame has come, its frames once it has ended)."""
    begun, box = threading.Event(), []

    def run():
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60, **PLAIN) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

        class Lines:
            def iter_lines(self):
                return lines

        box.append(events(Lines()))

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(30)
        return box[0]

    return begun, result


def get(url, path="/health"):
    return httpx.get(url + path, timeout=5, **PLAIN)


@pytest.mark.parametrize("number", first([signal.SIGTERM, signal.SIGINT]))
def test_what_runs_is_finished_before_leaving(number):
    with Process("ScriptedCore(step_s=0.03)", port=0, drain_timeout=20) as server:
        url = server.ready()
        begun, result = stream_in_background(url)
        assert begun.wait(10)
        server.signal(number)
        assert eventually(lambda: get(url).status_code == 503)
        assert get(url).json()["status"] == "draining"
        assert get(url, "/health/live").status_code == 200
        refused = httpx.post(f"{url}/generate", json={"prompt": "a"}, **PLAIN)
        assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 20
        frames, done = result()
        ended = time.monotonic()
        assert frames[-1]["finish_reason"] == "length" and done
        assert frames[-1]["usage"]["completion_tokens"] == 100
        code, errors = server.end()
        assert time.monotonic() - ended < SOON
        assert code == 0
        assert "Traceback" not in errors


def test_while_draining_retry_after_is_what_the_running_requests_still_need():
    with Process("ScriptedCore(step_s=0.02)", port=0, drain_timeout=300) as server:
        url = server.ready()
        begun, result = stream_in_background(url)  # 100 tokens: two seconds
        assert begun.wait(10)
        assert eventually(lambda: get(url, "/stats").json()["generated_tokens"] > 10)
        server.signal(signal.SIGTERM)
        assert eventually(lambda: get(url).status_code == 503)
        refused = httpx.post(f"{url}/generate", json={"prompt": "a"}, **PLAIN)
        assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) < 60  # and not 300
        result()
        assert server.end()[0] == 0


def test_what_does_not_finish_in_time_gets_a_last_frame():
    with Process("ScriptedCore(step_s=0.05, slots=1)", port=0, drain_timeout=0.5) as server:
        url = server.ready()
        begun, running = stream_in_background(url)
        assert begun.wait(10)
        _, waiting = stream_in_background(url)
        assert eventually(lambda: get(url, "/stats").json()["waiting"] == 1)
        start = time.monotonic()
        server.signal()
        for result in (running, waiting):
            frames, done = result()
            assert frames[-1]["finish_reason"] == "cancelled" and done
            assert frames[-1]["error"]["type"] == "draining"
        code, errors = server.end()
        assert 0.5 <= time.monotonic() - start < SOON
        assert code == 0
        assert "Traceback" not in errors


def test_a_second_signal_stops_at_once_with_last_frames():
    with Process("ScriptedCore(step_s=0.05)", port=0, drain_timeout=60) as server:
        url = server.ready()
        begun, result = stream_in_background(url, STREAM | {"max_tokens": 4000})
        assert begun.wait(10)
        server.signal()
        assert eventually(lambda: get(url).status_code == 503)
        start = time.monotonic()
        server.signal()
        frames, done = result()
        assert frames[-1]["finish_reason"] == "cancelled" and done
        assert server.end()[0] == 0
        assert time.monotonic() - start < SOON


@pytest.mark.parametrize(
    ("phase", "says"), [(None, "its process is killed"), ("p01", "leaving without waiting")], ids=["process", "thread"]
)
def test_a_step_that_hangs_does_not_keep_the_process(phase, says):
    with Process("ScriptedCore(hang={2: 600})", port=0, drain_timeout=0.2, phase=phase) as server:
        url = server.ready()
        begun, result = stream_in_background(url)
        assert begun.wait(10)
        server.signal()
        frames, done = result()
        assert frames[-1]["error"]["type"] == "draining" and done
        code, errors = server.end()
        assert code == 0
        assert says in errors


def test_a_third_signal_leaves_a_step_that_hangs_without_a_traceback():
    with Process("ScriptedCore(hang={2: 600})", port=0, drain_timeout=60) as server:
        url = server.ready()
        begun, result = stream_in_background(url)
        assert begun.wait(10)
        for _ in range(3):
            server.signal()
            time.sleep(0.2)
        frames, done = result()
        assert frames[-1]["error"]["type"] == "draining" and done
        code, errors = server.end()
        assert code == 0 and "Traceback" not in errors


def test_a_client_that_reads_nothing_does_not_keep_the_process():
    with Process("ScriptedCore(piece='x' * 65536, step_s=0.001)", port=0, drain_timeout=0.2) as server:
        url = server.ready()
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":")[-1]))) as connection:
            body = b'{"prompt": "a", "max_tokens": 4000, "stream": true}'
            connection.sendall(
                b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert eventually(lambda: get(url, "/stats").json()["generated_tokens"] > 200)
            server.signal()
            assert server.end()[0] == 0


def test_a_signal_while_loading_ends_it():
    with Process("time.sleep(600)", port=(port := free_port())) as server:
        assert eventually(lambda: is_loading(port))
        server.signal()
        assert server.end()[0] == 0


def is_loading(port):
    try:
        return get(f"http://127.0.0.1:{port}").json()["status"] == "loading"
    except httpx.TransportError:
        return False


def test_by_default_it_is_on_loopback_says_how_to_try_it_and_leaves_at_once_when_idle():
    with Process(port=0) as server:
        url = server.ready()
        assert url.startswith("http://127.0.0.1:")
        assert server.ready_line.startswith(f"gradus: serving scripted (phase p99, cpu, float32) at {url} ")
        command = server.ready_line.split("try: ")[1]
        assert command.startswith(f"curl -s {url}/generate -H 'Content-Type: application/json' -d '")
        body = command.split("-d '")[1].rstrip("'\n")
        headers = {"content-type": "application/json"}
        assert httpx.post(f"{url}/generate", content=body, headers=headers, **PLAIN).status_code == 200
        start = time.monotonic()
        server.signal()
        code, errors = server.end()
        assert code == 0
        assert time.monotonic() - start < SOON
        assert "API keys" not in errors


def test_beyond_loopback_it_does_not_start_without_keys():
    with Process(port=0, host="0.0.0.0") as server:
        code, errors = server.end()
        assert code == 2 and errors.count("\n") == 1
        assert errors.startswith("gradus: 0.0.0.0 is an address that others can reach: make a key (`gradus keys add")


def test_listening_beyond_loopback_without_keys_comes_with_a_warning():
    with Process(port=0, host="0.0.0.0", no_auth=True) as server:
        server.ready()
        server.signal()
        code, errors = server.end()
        assert code == 0
        assert "listening on 0.0.0.0 without API keys (--no-auth)" in errors


@pytest.mark.parametrize("advice", ["", '; with make: ARGS="--port 9000"'])
def test_a_busy_port_is_one_line(advice, monkeypatch):
    monkeypatch.setenv("MAKELEVEL", "1") if advice else monkeypatch.delenv("MAKELEVEL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken, Process(port=taken.getsockname()[1]) as server:
        code, errors = server.end()
        assert code == 2
        port = taken.getsockname()[1]
        assert errors == (
            f"gradus: cannot listen on 127.0.0.1 port {port}: address already in use; choose another --host or --port"
            f"{advice}\n"
        )


def test_a_load_that_fails_is_one_line():
    with Process("fail(ConfigError('phase must be one of p00, p01'))", port=0) as server:
        code, errors = server.end()
        assert code == 2
        assert errors == "gradus: phase must be one of p00, p01\n"


def test_a_defect_in_loading_keeps_its_traceback():
    with Process("1 / 0", port=0) as server:
        code, errors = server.end()
        assert code == 1
        assert "Traceback" in errors and "ZeroDivisionError" in errors


def test_a_server_whose_engine_has_failed_for_good_leaves_if_it_is_started_again_then():
    with Process("ScriptedCore(faults={1: RuntimeError('x')})", port=0, phase="p01", on_failure="exit") as server:
        answer = httpx.post(f"{server.ready()}/generate", json={"prompt": "a"}, **PLAIN)
        assert answer.status_code == 503 and answer.json()["error"]["type"] == "failed"
        code, errors = server.end(SOON)
        assert code == 1 and "leaving with status 1" in errors


def test_only_a_process_that_a_service_manager_started_leaves_by_itself(monkeypatch):
    for name in ("INVOCATION_ID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID"):
        monkeypatch.delenv(name, raising=False)
    auto = ServerConfig()
    assert not leaves_on_failure(auto) and leaves_on_failure(ServerConfig(on_failure="exit"))
    monkeypatch.setenv("INVOCATION_ID", "of the desktop's session")
    monkeypatch.setenv("SYSTEMD_EXEC_PID", "3")  # the session's
    assert not leaves_on_failure(auto)
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    assert leaves_on_failure(auto) and not leaves_on_failure(ServerConfig(on_failure="retry"))
    monkeypatch.delenv("SYSTEMD_EXEC_PID")
    monkeypatch.setattr(os, "getpid", lambda: 1)  # in a container
    assert leaves_on_failure(auto)
