"""What a server lacks: descriptors, room for its log, a folder for its socket, a clock that only goes forward.

The servers are processes of their own; they say what they lack, lose no request that they have, and go on once it is
there again.
"""

import ast
import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests.pairwise import first
from tests.server.conftest import ROOT, Process, eventually
from tests.server.test_faults_on_the_page import Client, serving, small_disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits another process's resources")
DESCRIPTORS = 64


def connections(port, count):
    """Connections that send nothing."""
    return [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(count)]


def test_without_descriptors_requests_under_way_end_and_new_ones_are_served_afterwards():
    with serving("ScriptedCore(step_s=0.01)") as (server, client):
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        (result,) = client.running(1, max_tokens=300)
        many = connections(client.port, 2 * DESCRIPTORS)  # those beyond the limit wait in the system's queue
        assert eventually(lambda: psutil.Process(server.process.pid).num_fds() >= DESCRIPTORS - 2)
        assert result().status == 200
        for each in many:
            each.close()
        # until then, new connections are closed at once
        assert eventually(lambda: psutil.Process(server.process.pid).num_fds() < DESCRIPTORS // 2)
        assert client.post(prompt="a", max_tokens=3).status == 200
        server.signal()
        code, errors = server.end()
        assert code == 0 and "Traceback" not in errors
        assert errors.count("\n") < 100  # a server that cannot accept does not fill its log


def test_an_engine_lost_while_there_are_no_descriptors_is_started_once_there_are_some():
    with serving() as (server, client):
        with contextlib.ExitStack() as stack:
            before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
            used = psutil.Process(server.process.pid).num_fds()
            health = stack.enter_context(client.kept())
            assert health().status == 200
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 1, before[1]))
            os.kill(server.engine_pid(), signal.SIGKILL)
            assert eventually(lambda: "Too many open files" in health().message), health()
            assert health().status == 503
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
        assert eventually(lambda: client.get().status == 200, 30)
        assert client.post(prompt="a", max_tokens=3).status == 200


def test_an_engine_starts_again_although_the_folder_of_temporary_files_was_gone(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with serving() as (server, client):
        shutil.rmtree(folder)
        pid = server.engine_pid()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: client.stats()["restarts"] > 0 and client.get().status == 200, 30)
        assert client.post(prompt="a", max_tokens=3).status == 200 and server.engine_pid() != pid


@pytest.mark.parametrize("sign", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_an_engine_that_crashes_is_named_by_its_signal_and_replaced(sign):
    with serving() as (server, client):
        (result,) = client.running()
        os.kill(server.engine_pid(), getattr(signal, sign))
        answer = result()
        assert answer.status == 503 and answer.message == f"the engine stopped: its process was ended by {sign}"
        assert eventually(lambda: client.get().status == 200, 20)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_under_its_log_stops_nothing_and_lines_come_again(tmp_path, log_format):
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        path = disk / "log"
        with path.open("w") as log:
            process = Process("ScriptedCore()", stderr=log, port=0, log_requests=True, log_format=log_format)
        with process as server:
            client = Client(Process.ready(server))
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(b"\0" * 4096):
                    pass
            for _ in range(60):  # more than the rest of the log's last block holds
                assert client.post(prompt="a", max_tokens=1).status == 200
            size = path.stat().st_size
            (disk / "ballast").unlink()
            for _ in range(60):
                assert client.post(prompt="a", max_tokens=1).status == 200
            assert path.stat().st_size > size
            server.signal()
            assert server.end()[0] == 0
            assert "Traceback" not in path.read_text(errors="replace")


@pytest.mark.parametrize("engine", first(["DeadlyCore()", "disturbed_llm(0, id)"]))
def test_it_serves_and_replaces_its_engine_though_its_log_has_been_full_from_the_start(engine):
    with open("/dev/full", "w") as full, Process(engine, stderr=full, port=0, log_requests=True) as server:
        client = Client(server.ready())
        assert client.post(prompt="a", max_tokens=3).status == 200
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert eventually(lambda: client.stats()["restarts"] == 1)
        assert eventually(lambda: client.get().status == 200, 60)
        assert client.post(prompt="a", max_tokens=3).status == 200
        server.signal()
        assert server.end()[0] == 0


# -- the clock ---------------------------------------------------------------------------------------------------------

DATES = {
    "cache/disk/folder.py": 1,  # files' own dates
    "cache/host/tier.py": 2,  # dates that order pages in files
    "cache/disk/tier.py": 1,  # dates that order pages on disk, also those of earlier servers
    "server/http/bodies.py": 1,  # the date of a line
    "server/http/model_routes.py": 1,  # "created" of a model
    "server/api/openai.py": 1,  # "created" of an answer
    "server/api/responses/answer.py": 2,  # "created_at", "completed_at"
    "server/traces/spans.py": 1,  # a span's begin; its length is measured
}
"""Where the wall clock is looked at, and how often: for dates alone, since it may jump."""


def looks_at_the_wall_clock(path):
    """How often a file calls time.time, time.time_ns or datetime's now."""
    names = {"time", "time_ns", "now", "utcnow", "today"}
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    attributes = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in names]
    return sum(
        isinstance(one.value, ast.Name) and one.value.id in ("time", "datetime", "date") for one in attributes
    ) + sum(isinstance(call, ast.Name) and call.id in ("time", "time_ns") for call in calls)


def test_intervals_are_never_measured_by_the_wall_clock():
    source = ROOT / "src" / "gradus"
    parts = ("server", "engine", "scheduling", "cache", "execution", "text", "assembly", "sampling")
    found = {
        path.relative_to(source).as_posix(): looks
        for part in parts
        for path in sorted((source / part).rglob("*.py"))
        if (looks := looks_at_the_wall_clock(path))
    }
    assert found == DATES


def test_a_look_at_the_wall_clock_is_found(tmp_path):
    path = Path(tmp_path / "a.py")
    path.write_text("import time\nfrom time import time as now\nstarted = time.time()\ntime.monotonic()\n")
    assert looks_at_the_wall_clock(path) == 1
    path.write_text("from time import time\nstarted = time()\n")
    assert looks_at_the_wall_clock(path) == 1
