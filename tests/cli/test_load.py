"""`gradus load`: only to this machine, exact lengths, and what changed in /stats."""

import pytest

from gradus.cli.commands.load import Server, changes, jobs
from gradus.errors import ConfigError
from tests.server.conftest import running
from tests.server.scripted import ScriptedCore


def test_prompts_have_the_length_asked_for_and_only_the_shared_tokens_in_common():
    asked = jobs(1000, 3, 20, 8, shared=5, seed=1)
    assert [(len(job.prompt), job.max_tokens) for job in asked] == [(20, 8)] * 3
    assert len({tuple(job.prompt[:5]) for job in asked}) == 1 and len({tuple(job.prompt[:6]) for job in asked}) == 3
    assert jobs(1000, 3, 20, 8, shared=5, seed=1) == asked != jobs(1000, 3, 20, 8, shared=5, seed=2)


def test_mixed_answers_have_lengths_up_to_the_longest():
    assert [job.max_tokens for job in jobs(1000, 4, 1, 10, mixed=True)] == [3, 5, 8, 10]


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "http://10.0.0.1:8000", "https://127.0.0.1", "http://0.0.0.0:8000", "127.0.0.1:8000", "",
     "http://localhost.example.org", "http://127.0.0.1:8000/generate", "http://127.0.0.1:port", "http://[::1"],
)  # fmt: skip
def test_other_machines_are_refused(url, gradus):
    with pytest.raises(ConfigError, match="must be a server on this machine"):
        Server.at(url)
    done = gradus("load", "--url", url)
    assert done.code == 2 and done.err.startswith("gradus: --url must be") and done.err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.1:1", "http://127.8.9.1:1", "http://[::1]:1"])
def test_this_machine_has_several_names(url):
    assert Server.at(url).port == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--requests", 0), ("--requests", 65), ("--prompt-tokens", 0), ("--max-tokens", 0), ("--shared", 65),
     ("--long", 100_001)],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused_before_anything_is_sent(option, value, gradus):
    done = gradus("load", option, str(value), "--url", "http://127.0.0.1:1")
    assert done.code == 2 and f"{option} must be" in done.err and f"got {value}" in done.err


def test_a_server_that_is_not_there_is_one_line(gradus):
    done = gradus("load", "--url", "http://127.0.0.1:1")
    assert done.code == 2 and "start it with gradus serve" in done.err and done.err.count("\n") == 1


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


def test_the_long_prompt_is_sent_when_the_others_have_their_first_token(gradus):
    with running(lambda: ScriptedCore(step_s=0.01)) as server:
        done = gradus("load", "--requests", "2", "--max-tokens", "9", "--long", "300", "--url", server.url)
    assert done.code == 0, done.err
    assert rows(done.out) == [["1", "64", "9"], ["2", "64", "9"], ["3", "300", "9"]]


def test_the_environments_key_opens_a_server_that_asks_for_it(gradus, monkeypatch):
    monkeypatch.setenv("GRADUS_API_KEY", "a-key-of-my-own-choice")
    with running() as server:
        assert gradus("load", "--url", server.url, "--requests", "2", "--max-tokens", "3").code == 0
        monkeypatch.delenv("GRADUS_API_KEY")
        done = gradus("load", "--url", server.url)
        assert done.code == 2 and "an API key is needed" in done.err


def test_what_the_server_refuses_is_said_in_its_words(gradus):
    with running() as server:
        done = gradus("load", "--prompt-tokens", "5000", "--long", "9", "--url", server.url)
    assert done.code == 2 and "the server refuses: " in done.err and "4096" in done.err


def test_a_server_that_loads_is_waited_for(gradus, monkeypatch):
    loading, stats = iter([{"state": "loading"}] * 3), Server.stats
    monkeypatch.setattr(Server, "stats", lambda server: next(loading, None) or stats(server))
    with running() as server:
        done = gradus("load", "--requests", "1", "--prompt-tokens", "5", "--max-tokens", "4", "--url", server.url)
    assert done.code == 0, done.err
    assert rows(done.out) == [["1", "5", "4"]]


def test_a_server_whose_model_could_not_be_loaded_is_one_line(gradus, monkeypatch):
    monkeypatch.setattr(Server, "stats", lambda server: {"state": "failed"})
    done = gradus("load", "--url", "http://127.0.0.1:1")
    assert done.code == 2 and done.err == "gradus: http://127.0.0.1:1 serves no model: it is failed\n"
