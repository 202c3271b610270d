"""`gradus serve`: options to settings, a dry run that prints everything, and the process itself."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from gradus.config.options import SERVED_STEP_TARGETS
from gradus.device.threads import usable_cores
from gradus.engine.request import ModelLimits
from gradus.server.engine.messages import ModelInfo
from gradus.server.serve import cache_line
from tests.cli.conftest import ROOT
from tests.pairwise import first
from tests.server.scripted import written

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
    assert shown["memory"]["max_sequences"] == sequences


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
    assert memory["sequences"] == 3
    assert pages["bytes"] == memory["cache_bytes"] == 45 * 8 * memory["cache_bytes_per_token"]


def test_a_dry_run_shows_the_paged_cache_to_people(gradus):
    done = gradus("serve", *TINY, "--dry-run", *PAGED, "--cache-tokens", "320")
    assert "20 of 16 tokens; 320 tokens" in done.out and "2 sessions of 100 tokens" in done.out
    assert "which fits" in done.out


def test_a_dry_run_says_so_where_weights_and_cache_do_not_fit(gradus):
    arguments = [*PAGED, "--cache-tokens", str(10**12)]
    assert "does NOT fit" in gradus("serve", *TINY, "--dry-run", *arguments).out
    assert plan(gradus, *arguments)["memory"]["fits"] is False


def test_phases_without_pages_plan_slots(gradus):
    memory = plan(gradus, "--phase", "p03", "--context-length", "100", "--max-sequences", "5")["memory"]
    assert memory["pages"] is None and memory["cache_bytes"] == 5 * memory["cache_bytes_per_sequence"]


def test_a_dry_run_without_a_phase_plans_the_final_engine(gradus):
    shown = plan(gradus, "--max-context", "100", "--max-sequences", "3", "--memory-fraction", "0.25")
    assert (shown["engine"], shown["phase"]) == ("final", None)
    memory = shown["memory"]
    assert (memory["memory_fraction"], memory["max_sequences"], memory["step_tokens"]) == (0.25, 3, 256)
    assert memory["usable_bytes"] == memory["free_bytes"] // 4
    # memory leaves room for far more than three sequences of 100 tokens: 19 pages of 16
    assert memory["pages"]["positions"] == 304 and memory["graph_bytes"] == 0
    spent = sum(memory[name] for name in ("weight_bytes", "step_bytes", "table_bytes", "cache_bytes"))
    assert memory["left_bytes"] == memory["usable_bytes"] - spent and memory["fits"]


def test_a_dry_run_tells_of_the_draft_as_it_would_be_loaded(gradus):
    asked = ["--speculate", "draft:random:tiny-llama", "--cache-tokens", "160"]
    alone, both, narrow = (plan(gradus, *arguments) for arguments in ([], asked, [*asked, "--draft-quantize", "int8"]))
    assert alone["draft"] is None and both["draft"] == {"name": "random:tiny-llama", "dtype": "float32"}
    assert narrow["draft"] == {"name": "random:tiny-llama", "dtype": "int8 weights, float32"}
    model, wide, less = (each["memory"]["weight_bytes"] for each in (alone, both, narrow))
    assert wide == 2 * model and model < less < 1.6 * model
    done = gradus("serve", *TINY, "--dry-run", *asked, "--draft-quantize", "int8")
    assert "draft               random:tiny-llama, int8 weights, float32\n" in done.out


def test_a_dry_run_says_where_memory_would_go(gradus):
    done = gradus("serve", *TINY, "--dry-run", "--cache-tokens", "160")
    for line in ("engine", "weights", "largest step", "CUDA graphs", "tables", "pages", "in all"):
        assert f"\n{line:<20}" in done.out
    assert "160 tokens in all layers" in done.out and "raise cache_tokens, or lower context_length" in done.out


def test_a_dry_run_shows_that_nothing_is_left_where_serving_would_refuse(gradus):
    small = ["--memory-fraction", "0.000000001"]
    shown = plan(gradus, *small)["memory"]
    assert shown["fits"] is False and shown["left_bytes"] < 0
    served = gradus("serve", *TINY, *small)
    assert (served.code, served.out) == (2, "") and "no memory is left for a cache on cpu" in served.err


@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("phase", "option", "value"),
    [
        ("p03", "--cache-tokens", "4096"),
        ("p01", "--policy", "priority"),
        ("p03", "--page-size", "16"),
        ("p05", "--token-budget", "64"),
        ("p06", "--memory-fraction", "0.5"),
        ("p06", "--switch-off", "overlap"),
    ],
)
def test_an_option_that_the_phase_would_ignore_is_refused(gradus, phase, option, value, dry_run):
    done = gradus("serve", *TINY, *dry_run, "--phase", phase, option, value)
    assert (done.code, done.out) == (2, "")
    assert f"{option[2:].replace('-', '_')} does nothing in phase {phase}" in done.err
    assert "the final engine" in done.err


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
        ("--memory-fraction", 0.25, "memory_fraction"),
        ("--max-waiting", 7, "max_waiting"),
        ("--request-timeout", 9.5, "request_timeout"),
        ("--drain-timeout", 2.5, "drain_timeout"),
        ("--log-level", "error", "log_level"),
        ("--log-format", "json", "log_format"),
        ("--metrics-alias", "none", "metrics_alias"),
        ("--price-per-hour", 2.5, "price_per_hour"),
        ("--max-body-bytes", 9000, "max_body_bytes"),
        ("--key-max-samples", 9, "key_max_samples"),
        ("--key-max-waiting", 4, "key_max_waiting"),
        ("--key-tokens-per-minute", 99, "key_tokens_per_minute"),
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
        "memory_fraction": 0.75,
        "max_waiting": 5,
        "request_timeout": 20,
        "drain_timeout": 3,
        "log_level": "debug",
        "log_format": "text",
        "metrics_alias": "vllm",
        "price_per_hour": 1.5,
        "max_body_bytes": 8000,
        "key_max_samples": 7,
        "key_max_waiting": 3,
        "key_tokens_per_minute": 55,
    }
    file.write_text(f"{setting}: {other[setting]}\n")
    assert plan(gradus, "--config", str(file))["settings"][setting] == other[setting]
    assert plan(gradus, "--config", str(file), option, str(value))["settings"][setting] == value


def test_switches_in_a_file_are_a_list_which_the_options_replace(gradus, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("switch_off: [prefix_cache, overlap]\n")
    assert plan(gradus, "--config", str(file))["settings"]["switch_off"] == ["prefix_cache", "overlap"]
    options = ["--switch-off", "chunked", "--switch-off", "graphs"]
    assert plan(gradus, "--config", str(file), *options)["settings"]["switch_off"] == ["chunked", "graphs"]


def test_hosts_are_allowed_by_a_list_in_a_file_or_one_option_each(gradus, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("allowed_hosts: [a.org, 10.0.0.7]\n")
    assert plan(gradus, "--config", str(file))["settings"]["allowed_hosts"] == ["a.org", "10.0.0.7"]
    options = ["--allowed-host", "b.org", "--allowed-host", "::1"]
    assert plan(gradus, "--config", str(file), *options)["settings"]["allowed_hosts"] == ["b.org", "::1"]


def test_flags_of_one_word_and_lists_of_origins_reach_the_settings(gradus, tmp_path):
    options = ["--no-auth", "--log-requests", "--cors-origin", "https://a.org", "--cors-origin", "http://b.org:80"]
    settings = plan(gradus, *options)["settings"]
    assert settings["no_auth"] is settings["log_requests"] is True
    assert settings["cors_origins"] == ["https://a.org", "http://b.org:80"]
    assert plan(gradus)["settings"]["no_auth"] is False
    file = tmp_path / "settings.yaml"
    file.write_text("log_requests: yes\n")
    assert plan(gradus, "--config", str(file))["settings"]["log_requests"] is True


def test_a_dry_run_shows_no_key(gradus, monkeypatch):
    monkeypatch.setenv("GRADUS_API_KEY", "a-key-of-my-own-choice")
    done = gradus("serve", *TINY, "--dry-run", "--json")
    assert done.code == 0 and "a-key-of-my-own-choice" not in done.out + done.err


@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
def test_beyond_loopback_it_is_refused_without_keys_before_anything_is_loaded(gradus, dry_run):
    done = gradus("serve", *TINY, "--host", "0.0.0.0", *dry_run)
    assert (done.code, done.out) == (2, "") and "gradus keys add" in done.err and "--no-auth" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--allowed-host", "http://a.org"],
        ["--api-keys", "/no/such/keys.yaml"],
        ["--cors-origin", "*"],
        ["--log-format", "xml"],
        ["--tls-cert", "cert.pem"],
        ["--tls-cert", "/no/such/cert.pem", "--tls-key", "key.pem"],
        ["--phase", "p77"],
        ["--context-length", "100000"],
        ["--dtype", "float128"],
        ["--log-level", "loud"],
        ["--memory-fraction", "1.5"],
        ["--switch-off", "brakes"],
        ["--draft-quantize", "int9", "--speculate", "draft:random:tiny-llama"],
    ],
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


@pytest.mark.parametrize(
    "wrong",
    first([
        ["--quantize", "int3"],
        ["--switch-off", "chunked", "--token-budget", "64"],
        ["--context-length", "1"],
    ]),
)  # fmt: skip
def test_settings_are_checked_before_loading_is_announced(gradus, wrong):
    """The engine's process checks them; the phase's engine is in this one."""
    for arguments in ([], ["--phase", "p03"]):
        done = gradus("serve", *TINY, *wrong, *arguments)
        *waiting, mistake = done.err.splitlines()
        assert done.code == 2 and mistake.startswith("gradus: ")
        assert all(line.startswith("… starting (") for line in waiting)  # on a slow machine


def test_a_list_may_follow_one_option_or_come_with_one_each(gradus):
    once = plan(gradus, "--served-model-name", "a", "b", "*", "--top-k", "5", "--switch-off", "graphs", "overlap")
    each = plan(gradus, "--served-model-name", "a", "--served-model-name", "b", "--served-model-name=*")
    assert once["settings"]["served_model_name"] == each["settings"]["served_model_name"] == ["a", "b", "*"]
    assert once["settings"]["switch_off"] == ["graphs", "overlap"] and once["settings"]["top_k"] == 5
    done = gradus("serve", "--port", "1", "2")
    assert done.code == 2 and "2" in done.err


def test_the_option_for_a_key_of_other_servers_is_answered_with_ours(gradus):
    done = gradus("serve", "--api-key", "secret")
    assert done.code == 2 and "GRADUS_API_KEY" in done.err and "--api-keys" in done.err and "secret" not in done.err


def test_with_json_lines_a_mistake_is_one_too_and_nothing_is_said_of_loading_before_it(process):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        child = process("serve", *TINY, "--log-format", "json", "--port", port)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (2, "")
    (line,) = map(json.loads, err.splitlines())
    assert line["level"] == "error" and port in line["message"]


def test_json_without_a_dry_run_is_refused(gradus):
    done = gradus("serve", *TINY, "--json")
    assert (done.code, "--dry-run" in done.err) == (2, True)


def test_it_serves_until_it_is_told_to_stop(process):
    options = ["--policy", "priority", "--cache-tokens", "4096", "--token-budget", "32", "--switch-off", "prefix_cache"]
    child = process("serve", *TINY, *options, "--speculate", "ngram", "--drafts", "3")
    ready = child.stdout.readline()  # "gradus: serving … at http://127.0.0.1:41234 …"
    assert "(final engine, cpu, float32, 0.001 GB of weights)" in ready
    assert "default sampling: temperature 1 (the protocol)" in ready
    url = ready.split(" at ")[1].split()[0]
    request = urllib.request.Request(
        f"{url}/generate",
        data=json.dumps({"prompt": "Hello", "max_tokens": 3}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    with urllib.request.urlopen(f"{url}/stats", timeout=20) as answer:
        stats = json.load(answer)
    settings, speculation = stats["settings"], stats["speculation"]
    assert stats["sessions"] == {"512": 8}  # 256 pages, 32 for each sequence
    assert speculation["why"] == "as asked for" and speculation["tokens_per_step"] >= 1
    assert all(len(speculation[name]) == 3 for name in ("drafted", "accepted", "acceptance"))
    assert 1 <= settings.pop("threads") <= usable_cores()
    assert settings == {
        "engine": "final",
        "max_sequences": 8,
        "page_size": 16,
        "cache_tokens": 4096,
        "policy": "priority",
        "step_target": SERVED_STEP_TARGETS["cpu"],
        "slowdown": None,
        "kv_dtype": "auto",
        "activations": "float",
        "speculate": "ngram",
        "draft_quantize": None,
        "drafts": 3,
        "token_budget": 32,
        "memory_fraction": 0.5,
        "prefix_dir": None,
        "host_cache": None,
        "prefix_dir_size": None,
        "runner": None,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "switches": {"prefix_cache": False, "chunked": True, "kernels": True, "graphs": False, "overlap": True},
    }
    with urllib.request.urlopen(f"{url}/health", timeout=20) as answer:
        assert json.load(answer)["engine"] == "final"
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=20) == 0
    assert "the cache holds 4,096 tokens: 8 sessions of 512 tokens (max_sequences)\n" in child.stderr.read()


def test_the_line_about_the_cache_goes_on_with_host_memory():
    limits = ModelLimits(vocab_size=9, context_length=512)
    settings = {"max_sequences": 8, "cache_tokens": 1024}
    info = ModelInfo("m", "final", None, "cuda", "bfloat16", limits, settings, sessions={"512": 2})
    alone = "the cache holds 1,024 tokens: 2 sessions of 512 tokens"
    assert cache_line(info) == alone
    behind = cache_line(replace(info, kept_sessions={"512": 40}))
    assert behind == f"{alone}; host_cache keeps 40 sessions of 512 tokens"


# The command with an engine of the tests: what it prints does not depend on the engine, and this one needs no torch.
STAND_IN = """
import sys
from gradus.cli import main
from gradus.server.engine import loading
from tests.server import scripted

def load_engine(config, progress):
    progress.begin("loading an engine of the tests", None)
    return scripted.load_engine(config)

loading.open_tokenizer, loading.load_engine = scripted.open_tokenizer, load_engine
sys.exit(main())
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_it_serves_though_its_log_is_on_a_full_disk():
    options = ["--model", written("ScriptedCore()"), "--port", "0", "--phase", "p01"]
    command = [sys.executable, "-c", STAND_IN, "serve", *options]
    with open("/dev/full", "w") as full:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True, cwd=ROOT)
    with child:
        try:
            url = child.stdout.readline().split(" at ")[1].split()[0]
            with urllib.request.urlopen(f"{url}/health", timeout=20) as answer:
                assert answer.status == 200
            child.send_signal(signal.SIGTERM)
            assert child.wait(timeout=20) == 0
        finally:
            child.kill()
