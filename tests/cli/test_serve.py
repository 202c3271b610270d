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


PAGED = ["--phase", "p06", "--context-length", "100"]


def test_a_dry_run_counts_the_pages_that_the_engine_allocates(gradus):
    memory = plan(gradus, *PAGED, "--max-sequences", "5", "--cache-tokens", "350", "--page-size", "8")["memory"]
    pages = memory["pages"]
    # 350 tokens take 44 pages; a sequence of 100 tokens takes 13; page 0 is allocated too
    assert (pages["count"], pages["page_size"], pages["positions"]) == (44, 8, 352)
    assert pages["full_sequences"] == memory["sequences"] == 3
    assert pages["bytes"] == memory["cache_bytes"] == 45 * 8 * memory["cache_bytes_per_token"]


def test_a_dry_run_shows_the_paged_cache_to_people(gradus):
    done = gradus("serve", *TINY, "--dry-run", *PAGED, "--cache-tokens", "320")
    assert "20 of 16 tokens; 320 tokens" in done.out and "2 sequences of full length" in done.out
    assert "which fits" in done.out


def test_a_dry_run_says_so_where_weights_and_cache_do_not_fit(gradus):
    arguments = [*PAGED, "--cache-tokens", str(10**12)]
    assert "does NOT fit" in gradus("serve", *TINY, "--dry-run", *arguments).out
    assert plan(gradus, *arguments)["memory"]["fits"] is False


def test_phases_without_pages_plan_slots(gradus):
    memory = plan(gradus, "--phase", "p03", "--context-length", "100", "--max-sequences", "5")["memory"]
    assert memory["pages"] is None and memory["cache_bytes"] == 5 * memory["cache_bytes_per_sequence"]


@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("phase", "option", "value"),
    [
        ("p03", "--cache-tokens", "4096"),
        ("p01", "--policy", "priority"),
        ("p03", "--page-size", "16"),
        ("p05", "--token-budget", "64"),
    ],
)
def test_an_option_that_the_phase_would_ignore_is_refused(gradus, phase, option, value, dry_run):
    done = gradus("serve", *TINY, *dry_run, "--phase", phase, option, value)
    assert (done.code, done.out) == (2, "")
    assert f"{option[2:].replace('-', '_')} does nothing in phase {phase}" in done.err and "p06" in done.err


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--phase", "p00", "phase"),
        ("--device", "cpu", "device"),
        ("--context-length", 64, "context_length"),
        ("--host", "localhost", "host"),
        ("--max-sequences", 3, "max_sequences"),
        ("--page-size", 32, "page_size"),
        ("--cache-tokens", 4096, "cache_tokens"),
        ("--policy", "deadline", "policy"),
        ("--token-budget", 64, "token_budget"),
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
        "page_size": 8,
        "cache_tokens": 2048,
        "policy": "priority",
        "token_budget": 32,
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
    child = process("serve", *TINY, "--policy", "priority", "--cache-tokens", "4096", "--token-budget", "32")
    ready = child.stdout.readline()  # "gradus: serving … at http://127.0.0.1:41234 …"
    url = ready.split(" at ")[1].split()[0]
    request = urllib.request.Request(
        f"{url}/generate",
        data=json.dumps({"prompt": "Hello", "max_tokens": 3}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    with urllib.request.urlopen(f"{url}/stats", timeout=20) as answer:
        settings = json.load(answer)["settings"]
    assert settings == {
        "max_sequences": 8,
        "page_size": 16,
        "cache_tokens": 4096,
        "policy": "priority",
        "token_budget": 32,
    }
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=20) == 0
