"""Clients against a server whose delays are known: an open load waits for no answer, a closed one for each."""

import asyncio
import math

import pytest

from gradus.load.asking.clients import Rules, crew, processes_for, run
from gradus.load.asking.routes import COMPLETIONS, Writing
from gradus.load.asking.target import Target
from gradus.load.jobs.job import Job
from gradus.load.objective import Objective
from tests.load.server import HEAD, answer, ending, paced, refusal, scripted, token

WRITING = Writing(COMPLETIONS, "m")


def jobs(times, output=3):
    return [Job(time, (1, 2, number), output) for number, time in enumerate(times)]


def test_known_delays_are_measured():
    with scripted(paced(0.1, 0.02)) as server:
        done = run(server.target, WRITING, jobs([0.0] * 3, 6), Rules())
    for found in done.answers:
        assert 0.1 <= found.ttft < 0.6 and 0.019 <= found.tpot < 0.12, (found.ttft, found.tpot)
        assert (found.tokens, found.events, found.prompt_tokens, found.error) == (6, 6, 3, "")
        assert len(found.gaps) == 5 and sum(found.gaps) == pytest.approx(found.last - found.first, abs=0.1)
    assert [found.index for found in done.answers] == [0, 1, 2] and not done.stopped and done.planned == 3


def test_an_open_load_sends_when_requests_are_due_though_none_is_answered():
    """The server answers after a second. All 20 requests are sent within 0.4 s, each when it is due."""
    times = [0.02 * number for number in range(20)]
    with scripted(paced(1.0, 0.0)) as server:
        done = run(server.target, WRITING, jobs(times), Rules())
        assert server.most == 20
    assert all(
        found.sent - done.start == pytest.approx(due, abs=0.4) for found, due in zip(done.answers, times, strict=True)
    )
    assert done.late_s < 0.4 and all(not found.error for found in done.answers)


def test_users_wait_for_their_answers_and_are_never_more():
    with scripted(paced(0.05, 0.0)) as server:
        done = run(server.target, WRITING, jobs([0.0] * 12), Rules(limit=3))
        assert server.most == 3 and server.connections == 3, "a user keeps its connection"
    assert done.answers[-1].last - done.start >= 4 * 0.05
    assert all(found.sent - found.due < 0.3 for found in done.answers), "a user's next request is due when it is free"


def test_several_processes_share_a_load_and_begin_together():
    times = [0.01 * number for number in range(30)]
    with scripted(paced(0.02, 0.001)) as server, crew(2) as pool:
        open_load = run(server.target, WRITING, jobs(times), Rules(), pool)
        closed = run(server.target, WRITING, jobs([0.0] * 20), Rules(limit=4), pool)
    for done, count in ((open_load, 30), (closed, 20)):
        assert [found.index for found in done.answers] == list(range(count)) and len(done.cpu_s) == 2
        assert not any(found.error for found in done.answers)
    assert open_load.late_s < 1 and {tuple(body["prompt"]) for body in server.bodies} == {
        (1, 2, number) for number in range(30)
    }


def test_a_late_job_is_sent_when_all_others_have_their_first_token_or_their_end():
    async def says(body, number, write):
        if body["prompt"][2] == 1:
            return await write(refusal(503, "full"))
        await asyncio.sleep(0.1 if body["prompt"][2] == 0 else 0.0)
        await write(HEAD + token(0))
        await asyncio.sleep(0.3)
        await write(b"".join(map(token, range(1, body["max_tokens"]))) + ending(body["max_tokens"]))

    work = [*jobs([0.0, 0.0]), Job(0.0, (1, 2, 9), 3, late=True)]
    with scripted(says) as server:
        done = run(server.target, WRITING, work, Rules())
    first, refused, late = done.answers
    assert refused.error == "503" and first.first <= late.sent < first.last and not late.error


def test_a_server_that_hangs_ends_nothing_but_its_answer():
    async def says(body, number, write):
        if body["prompt"][2] == 1:
            await write(HEAD + token(0))
            await asyncio.sleep(60)
        await write(answer(body["max_tokens"]))

    with scripted(says) as server:
        done = run(server.target, WRITING, jobs([0.0] * 3), Rules(timeout=0.5))
    assert [found.error for found in done.answers] == ["", "timeout", ""]
    assert done.answers[1].events == 1 and 0.5 <= done.answers[1].e2el < 2


def test_errors_have_their_kinds_and_the_next_request_goes_on():
    async def says(body, number, write):
        match number:
            case 0:
                await write(refusal(503, "full", "Retry-After: 2"))
            case 1:
                await write(HEAD + token(0))
                raise ConnectionError
            case 2:
                await write(answer(1))
            case _:
                await write(answer(body["max_tokens"]))

    with scripted(says) as server:
        done = run(server.target, WRITING, jobs([0.0] * 5), Rules(limit=1))
    assert [found.error for found in done.answers] == ["503", "connection", "short", "", ""]
    assert done.answers[0].again == 2.0 and done.answers[0].detail == "full"


def test_nobody_at_the_address_is_an_error_of_each_request():
    done = run(Target("127.0.0.1", 1), WRITING, jobs([0.0, 0.0]), Rules())
    assert [found.error for found in done.answers] == ["connection"] * 2


def test_patience_ends_what_is_left_after_the_last_request():
    with scripted(paced(30.0, 0.0)) as server:
        done = run(server.target, WRITING, jobs([0.0, 0.1]), Rules(patience=0.3))
    assert [found.error for found in done.answers] == ["unfinished"] * 2 and not done.stopped
    assert max(found.last for found in done.answers) - done.start < 5


def test_a_run_ends_early_once_too_many_have_missed_the_objective():
    times = [0.02 * number for number in range(400)]
    with scripted(paced(0.05, 0.0)) as server:
        rules = Rules(objective=Objective(ttft=0.01), most_missed=5)
        done = run(server.target, WRITING, jobs(times), rules)
        kept = run(server.target, WRITING, jobs(times[:20]), Rules(objective=Objective(ttft=5.0), most_missed=0))
    assert done.stopped and 6 <= len(done.answers) < 100 and done.planned == 400
    assert not kept.stopped and len(kept.answers) == 20


def test_a_warm_up_is_not_counted():
    with scripted(paced(0.0, 0.0)) as server:
        done = run(server.target, WRITING, jobs([0.0, 0.1, 0.2, 0.3]), Rules())
    assert [found.index for found in done.after(0.15)] == [2, 3] and len(done.after(0.0)) == 4


def test_a_connection_that_the_server_closes_between_requests_is_replaced():
    async def says(body, number, write):
        await write(answer(body["max_tokens"]))
        raise ConnectionError

    with scripted(says) as server:
        done = run(server.target, WRITING, jobs([0.0, 0.2, 0.4]), Rules())
        assert server.connections == 3
    assert [found.error for found in done.answers] == [""] * 3


def test_a_key_is_sent_and_not_shown(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret-of-mine")
    target = Target.at("http://127.0.0.1:1", key_variable="SOME_KEY")
    assert target.headers == {"Authorization": "Bearer secret-of-mine"} and "secret" not in f"{target!r} {target}"
    with scripted(paced(0.0, 0.0)) as server:
        run(Target(server.target.host, server.target.port, key="secret-of-mine"), WRITING, jobs([0.0]), Rules())
    assert "Authorization: Bearer secret-of-mine\r\n" in server.heads[0]


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.1:1", "http://127.8.9.1:1", "http://[::1]:1"])
def test_this_machine_has_several_names(url):
    assert Target.at(url).port == 1


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "http://10.0.0.1:8000", "ftp://127.0.0.1", "http://0.0.0.0:8000", "127.0.0.1:8000", "",
     "http://localhost.example.org", "http://127.0.0.1:8000/generate", "http://127.0.0.1:port", "http://[::1",
     "http://127.0.0.1@example.org"],
)  # fmt: skip
def test_other_machines_need_consent_and_nonsense_is_never_an_address(url):
    from gradus.errors import ConfigError

    with pytest.raises(ConfigError, match="must be the address of a server on this machine"):
        Target.at(url)
    if url in ("http://example.org", "http://10.0.0.1:8000", "http://localhost.example.org"):
        assert Target.at(url, mine=True).port
        assert Target.at("https://example.org", mine=True).port == 443
    elif url not in ("http://0.0.0.0:8000", "http://127.0.0.1@example.org"):
        with pytest.raises(ConfigError):
            Target.at(url, mine=True)


def test_processes_follow_the_streams():
    assert processes_for(1) == 1 == processes_for(32) and processes_for(10**6) <= 8 and math.isfinite(processes_for(64))
