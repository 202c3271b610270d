"""`gradus load`: others' servers only by consent, exact lengths, what changed in /stats, and exit codes."""

import json

import pytest

from gradus.cli.commands.clients.load import changes
from gradus.load.asking.clients import Run
from gradus.load.asking.target import Target
from tests.server.conftest import running
from tests.server.scripted import ScriptedCore


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8000", "ftp://127.0.0.1", "127.0.0.1:8000"])
def test_other_machines_are_refused_in_one_line(url, gradus):
    done = gradus("load", "--url", url)
    assert done.code == 2 and done.err.startswith("gradus: --base-url must be") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("requests", 0), ("requests", 100_001), ("prompt-tokens", 0), ("max-tokens", 0), ("shared", 65), ("long", -1),
     ("request-rate", 0), ("max-concurrency", "1,x"), ("burstiness", 0), ("share", 1.5), ("goodput", "ttft"),
     ("percentile-metrics", "speed"), ("metric-percentiles", "101")],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused_before_anything_is_sent(option, value, gradus):
    done = gradus("load", f"--{option}", str(value), "--url", "http://127.0.0.1:1")
    assert done.code == 2 and option.replace("-", "_") in done.err.replace("-", "_") and "got " in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [("--find-rate",), ("--find-rate", "--goodput", "ttft:9"), ("--request-rate", "1,2", "--users", "1,2"),
     ("--plot", "x.svg"), ("--mix", "chat", "--prompt-tokens", "7"), ("--trace", "x", "--mixed"),
     ("--long", "9", "--users", "1,2"), ("--shared", "3", "--random-prefix-len", "3")],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(options, gradus):
    done = gradus("load", *options, "--url", "http://127.0.0.1:1")
    assert done.code == 2 and done.err.count("\n") == 1 and "no answer" not in done.err


def test_a_server_that_is_not_there_is_one_line(gradus):
    done = gradus("load", "--url", "http://127.0.0.1:1")
    assert done.code == 2 and "start it, for example with gradus serve" in done.err and done.err.count("\n") == 1


def test_what_changed_is_shown_and_what_changes_by_itself_is_not():
    before = {"uptime_s": 1.5, "steps": 0, "rows": 7, "model": "m", "cache": None}
    after = {"uptime_s": 9.5, "steps": 40, "rows": 7, "model": "m", "cache": {"held": 3, "page_size": 0}}
    assert changes(before, after) == "steps       0 → 40\ncache.held  0 → 3"


def rows(out: str) -> list[list[str]]:
    """Number, prompt and answer of each request."""
    return [line.split()[:3] for line in out.splitlines() if line[:1].isdigit()]


def test_all_requests_are_answered_and_counted(gradus):
    with running() as server:
        done = gradus("load", "--requests", "3", "--prompt-tokens", "5", "--max-tokens", "4", "--url", server.url)
    assert done.code == 0, done.err
    assert rows(done.out) == [["1", "5", "4"], ["2", "5", "4"], ["3", "5", "4"]]
    assert "completed         0 → 3" in done.out and "generated_tokens  0 → 12" in done.out


def test_mixed_answers_have_lengths_up_to_the_longest(gradus):
    with running() as server:
        done = gradus("load", "--requests", "4", "--mixed", "--max-tokens", "10", "--url", server.url)
    assert [row[2] for row in rows(done.out)] == ["3", "5", "8", "10"]


def test_the_long_prompt_is_sent_when_the_others_have_their_first_token(gradus):
    with running(lambda: ScriptedCore(step_s=0.01)) as server:
        done = gradus("load", "--requests", "2", "--max-tokens", "9", "--long", "300", "--url", server.url)
        seen = server.engine.seen
    assert done.code == 0, done.err
    assert rows(done.out) == [["1", "64", "9"], ["2", "64", "9"], ["3", "300", "9"]] and len(seen) == 3


def test_the_environments_key_opens_a_server_that_asks_for_it_and_is_not_printed(gradus, monkeypatch, tmp_path):
    monkeypatch.setenv("GRADUS_API_KEY", "a-key-of-my-own-choice")
    file = tmp_path / "found.json"
    with running() as server:
        done = gradus("load", "--url", server.url, "--max-tokens", "3", "--result-filename", str(file))
        assert done.code == 0 and "my-own-choice" not in done.out + done.err + file.read_text()
        monkeypatch.setenv("OTHER", "a-key-of-my-own-choice")
        monkeypatch.delenv("GRADUS_API_KEY")
        done = gradus("load", "--url", server.url)
        assert done.code == 2 and "an API key is needed" in done.err
        assert gradus("load", "--url", server.url, "--key-variable", "OTHER").code == 0


def test_what_the_server_refuses_is_said_in_its_words(gradus):
    with running() as server:
        done = gradus("load", "--prompt-tokens", "5000", "--long", "9", "--url", server.url)
    assert done.code == 2 and "the server refuses: " in done.err and "4096" in done.err


def test_a_server_that_loads_is_waited_for(gradus, monkeypatch):
    loading, stats = iter([{"state": "loading"}] * 3), Target.stats
    monkeypatch.setattr(Target, "stats", lambda target: next(loading, None) or stats(target))
    with running() as server:
        done = gradus("load", "--requests", "1", "--prompt-tokens", "5", "--max-tokens", "4", "--url", server.url)
    assert done.code == 0, done.err
    assert rows(done.out) == [["1", "5", "4"]]


def test_a_server_whose_model_could_not_be_loaded_is_one_line(gradus, monkeypatch):
    monkeypatch.setattr(Target, "stats", lambda target: {"state": "failed"})
    done = gradus("load", "--url", "http://127.0.0.1:1")
    assert done.code == 2 and done.err == "gradus: http://127.0.0.1:1 serves no model: it is failed\n"


def test_vllms_names_of_options_mean_the_same(gradus, tmp_path):
    file = tmp_path / "result.json"
    with running() as server:
        done = gradus(
            "load", "--base-url", server.url, "--backend", "vllm", "--endpoint", "/v1/completions", "--num-prompts",
            "6", "--random-input-len", "20", "--random-output-len", "5", "--random-range-ratio", "0.2",
            "--random-prefix-len", "7", "--request-rate", "50", "--burstiness", "2", "--max-concurrency", "3",
            "--goodput", "ttft:9000", "e2el:9000", "--percentile-metrics", "ttft,e2el", "--metric-percentiles",
            "25,99.9", "--save-result", "--result-filename", file,
        )  # fmt: skip
    assert done.code == 0, done.err
    (found,) = json.loads(file.read_text())["loads"]
    assert found["completed"] == 6 and found["good"] == 1 and found["users"] == 3
    assert 6 * (7 + 16) <= found["prompt_tokens"] <= 6 * (7 + 24) and found["peak_concurrency"] <= 3
    assert set(found["ttft_ms"]) == {"mean", "p25", "p99.9"} and "p99.9" in done.out and "TPOT" not in done.out


def test_a_missed_objective_is_a_failure(gradus):
    with running(lambda: ScriptedCore(step_s=0.02)) as server:
        strict = gradus("load", "--url", server.url, "--max-tokens", "4", "--goodput", "tpot:1")
        kind = gradus("load", "--url", server.url, "--max-tokens", "4", "--goodput", "tpot:5000")
    assert (strict.code, kind.code) == (1, 0)
    assert "0.0% keep TPOT ≤ 1 ms" in strict.out and "100.0% keep" in kind.out


def test_several_numbers_of_users_are_compared_and_drawn(gradus, tmp_path):
    plot, file = tmp_path / "curve.svg", tmp_path / "found.json"
    with running(lambda: ScriptedCore(step_s=0.01, slots=4)) as server:
        done = gradus(
            "load", "--url", server.url, "--concurrency", "1,2,4,8", "--requests", "8", "--max-tokens", "5", "--plot",
            plot, "--result-filename", file,
        )  # fmt: skip
    assert done.code == 0, done.err
    loads = json.loads(file.read_text())["loads"]
    assert [one["users"] for one in loads] == [1, 2, 4, 8]
    assert all(one["peak_concurrency"] <= one["users"] for one in loads) and loads[0]["peak_concurrency"] == 1
    assert [one["completed"] for one in loads] == [8, 8, 16, 32]
    assert loads[2]["output_tok_s"] > 1.3 * loads[0]["output_tok_s"]
    assert plot.read_text().startswith("<svg") and "users" in plot.read_text()


def test_the_rate_that_a_server_keeps_is_found(gradus, tmp_path, monkeypatch):
    """One slot and 5 steps of 10 ms for each request: 20 per second at most. On a busy machine the clients are late."""
    monkeypatch.setattr(Run, "late_s", 0.0)
    file = tmp_path / "found.json"
    with running(lambda: ScriptedCore(step_s=0.01, slots=1)) as server:
        done = gradus(
            "load", "--url", server.url, "--request-rate", "3", "--find-rate", "--goodput", "ttft:400", "--share",
            "0.9", "--max-tokens", "5", "--prompt-tokens", "4", "--probe-seconds", "1.5", "--probe-requests", "20",
            "--warmup", "0.2", "--precision", "0.5", "--result-filename", file,
        )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(file.read_text())["found"]
    assert 0 < found["best"] <= 26 and found["failed"] > found["best"] and "the highest rate at which" in done.out
