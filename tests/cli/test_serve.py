"""`gradus serve`: options to settings, a dry run that tells all, and the process itself."""

import json
import signal
import socket
import urllib.request

import pytest

TINY = ["--model", "random:tiny-llama", "--dtype", "float32", "--port", "0"]


def plan(gradus, *arguments: str) -> dict:
    done = gradus("serve", *TINY, "--dry-run", "--json", *arguments)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_dry_run_says_what_serving_would_take(gradus):
    memory = plan(gradus, "--context-length", "100")["memory"]
    # tiny-llama has 4 layers with 2 key-value heads of 24: keys and values, 4 bytes each
    assert memory["cache_bytes_per_token"] == 2 * 4 * 2 * 24 * 4
    assert (memory["context_length"], memory["dtype"]) == (100, "float32")


@pytest.mark.parametrize(("phase", "sequences"), [("p01", 1), ("p03", 5)])
def test_a_dry_run_knows_how_many_sequences_the_phase_runs(gradus, phase, sequences):
    shown = plan(gradus, "--phase", phase, "--max-sequences", "5")
    assert shown["memory"]["phase_capacity"] == sequences


def test_a_dry_run_for_people_says_the_same(gradus):
    done = gradus("serve", *TINY, "--dry-run")
    assert done.code == 0
    assert "random:tiny-llama" in done.out and "context 512 tokens" in done.out


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--phase", "p00", "phase"),
        ("--device", "cpu", "device"),
        ("--context-length", 64, "context_length"),
        ("--host", "localhost", "host"),
        ("--max-sequences", 3, "max_sequences"),
        ("--max-waiting", 7, "max_waiting"),
        ("--request-timeout", 9.5, "request_timeout"),
        ("--drain-timeout", 2.5, "drain_timeout"),
        ("--log-level", "error", "log_level"),
    ],
)
def test_an_option_wins_over_the_file_and_the_file_over_the_default(gradus, tmp_path, option, value, setting):
    file = tmp_path / "settings.yaml"
    other = {
        "phase": "p01",
        "device": "auto",
        "context_length": 128,
        "host": "127.0.0.1",
        "max_sequences": 2,
        "max_waiting": 5,
        "request_timeout": 20,
        "drain_timeout": 3,
        "log_level": "debug",
    }
    file.write_text(f"{setting}: {other[setting]}\n")
    assert plan(gradus, "--config", str(file))["settings"][setting] == other[setting]
    assert plan(gradus, "--config", str(file), option, str(value))["settings"][setting] == value


@pytest.mark.parametrize(
    "arguments", [["--phase", "p77"], ["--context-length", "100000"], ["--dtype", "float128"], ["--log-level", "loud"]]
)
def test_a_dry_run_refuses_what_serving_would(gradus, arguments):
    done = gradus("serve", *TINY, "--dry-run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert arguments[1] in done.err


def test_a_busy_port_is_said_before_anything_is_loaded(gradus):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for dry_run in (["--dry-run"], []):
            done = gradus("serve", "--model", "random:tiny-llama", "--port", port, *dry_run)
            assert done.code == 2
            assert port in done.err


def test_json_without_a_dry_run_is_refused(gradus):
    done = gradus("serve", *TINY, "--json")
    assert (done.code, "--dry-run" in done.err) == (2, True)


def test_it_serves_until_it_is_told_to_stop(process):
    child = process("serve", *TINY)
    ready = child.stdout.readline()  # "gradus: serving … at http://127.0.0.1:41234 …"
    url = ready.split(" at ")[1].split()[0]
    request = urllib.request.Request(
        f"{url}/generate",
        data=json.dumps({"prompt": "Hello", "max_tokens": 3}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=20) == 0
