"""An engine that ends when there is nothing to do, and another one that a request starts.

The engine is a link that a test plays, a scripted core in a process of its own, or a tiny model there.
"""

import asyncio
import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gradus.engine.sequence import Timings
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.loading.progress import Both, Stage, Stages
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import Cancel, Failure, LoadFailed, Loading, Report, SampleOutput, Submit
from gradus.server.failures import ClientGone, RequestTimeout, Unavailable
from tests.server.conftest import events, eventually, processes, real_running, running
from tests.server.test_restarts import FAULT, ask, playing, until

SOON = 0.02  # seconds without a request after which these engines sleep
TIMINGS = Timings(queued_s=0.0, ttft_s=0.0, total_s=0.0, tokens=1, device_s=0.0)
SLOW_START = "(__import__('time').sleep(1.5), ScriptedCore())[1]"
"""An engine that takes longer to load than a client waits without a word."""


def submits(link):
    return [command.handle for command in link.sent if isinstance(command, Submit)]


def test_an_idle_engine_sleeps_and_a_request_wakes_it():
    async def play(client, link, load):
        await until(lambda: client.state == "asleep")
        assert (link.rested, link.started, client.supervisor.ready, client.supervisor.refusal) == (1, 1, True, None)
        first, second = client.submit(ask()), client.submit(ask())
        assert (client.state, link.started, submits(link), client.waiting) == ("waking", 2, [], 2)
        load()
        assert client.state == "ready" and submits(link) == [first.handles[0], second.handles[0]]
        handle = first.handles[0]
        client.receive(
            Report(accepted=[handle], samples_taken=2, commands_taken=2, others=[SampleOutput(handle, (5,))])
        )
        assert [delta.token_ids for delta in await first.receive()] == [(5,)]
        await asyncio.sleep(0.5)
        assert client.state == "ready" and link.rested == 1  # there is work

    playing(play, sleep_after=SOON)


def test_an_engine_does_not_sleep_before_its_time_nor_without_the_setting():
    async def play(client, link, load):
        await asyncio.sleep(0.6)
        assert client.state == "ready" and link.rested == 0

    playing(play)
    playing(play, sleep_after=5.0)


def test_a_request_in_the_moment_of_sleeping_is_served_by_the_next_engine():
    async def play(client, link, load):
        client.supervisor.sleep()
        stream = client.submit(ask())
        assert link.calls == ["start", "rest", "start"]
        load()
        assert submits(link) == [stream.handles[0]]

    playing(play)


def test_a_request_cancelled_while_the_engine_wakes_never_reaches_it():
    async def play(client, link, load):
        client.supervisor.sleep()
        gone, stays = client.submit(ask()), client.submit(ask())
        gone.cancel()
        assert client.waiting == 1
        with pytest.raises(ClientGone):
            await gone.accepted()
        load()
        assert submits(link) == [stays.handles[0]] and not [one for one in link.sent if isinstance(one, Cancel)]

    playing(play)


def test_a_request_whose_time_ends_while_the_engine_wakes_is_told_so(monkeypatch):
    monkeypatch.setattr("gradus.server.client.LAST_WORD_S", 0.01)

    async def play(client, link, load):
        client.supervisor.sleep()
        stream = client.submit(ask())
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(stream.accepted(), 5)
        assert client.waiting == 0 and client.counts.timed_out == 1
        load()
        assert not submits(link)

    playing(play, request_timeout=0.05)


def test_the_queue_of_a_waking_engine_is_bounded():
    async def play(client, link, load):
        client.supervisor.sleep()
        streams = [client.submit(ask()) for _ in range(3)]
        with pytest.raises(Unavailable) as told:
            client.submit(ask())
        assert told.value.kind == "overloaded"
        streams[1].cancel()
        client.submit(ask())

    playing(play, max_waiting=3)


def test_a_start_that_fails_while_the_engine_wakes_is_told_and_tried_again():
    async def play(client, link, load):
        client.supervisor.sleep()
        stream = client.submit(ask())
        client.receive(LoadFailed(Failure("GradusError", "no memory")))
        with pytest.raises(Unavailable, match="no memory") as told:
            await stream.accepted()
        assert told.value.kind == "restarting" and client.waiting == 0
        await until(lambda: link.started == 3)
        load()
        assert client.state == "ready" and not submits(link)
        client.receive(FAULT)
        assert client.state == "restarting"

    playing(play)


def test_a_drain_ends_a_sleeping_engine_at_once():
    async def play(client, link, load):
        client.supervisor.sleep()
        await asyncio.wait_for(client.drain(5), 1)
        assert client.state == "draining" and link.started == 1
        with pytest.raises(Unavailable):
            client.submit(ask())

    playing(play)


def test_a_drain_serves_what_waits_for_a_waking_engine():
    async def play(client, link, load):
        client.supervisor.sleep()
        stream = client.submit(ask())
        draining = asyncio.create_task(client.drain(5))
        await asyncio.sleep(0)
        assert client.state == "draining"
        load()
        (handle,) = submits(link)
        client.receive(Report(accepted=[handle], others=[SampleOutput(handle, (5,), (), "length", timings=TIMINGS)]))
        await asyncio.wait_for(draining, 1)
        assert [delta.completion.finish_reason for delta in await stream.receive()] == ["length"]

    playing(play)


def test_a_drain_that_runs_out_of_time_ends_what_waits_for_a_waking_engine(monkeypatch):
    monkeypatch.setattr("gradus.server.client.LAST_WORD_S", 0.01)

    async def play(client, link, load):
        client.supervisor.sleep()
        stream = client.submit(ask())
        await asyncio.wait_for(client.drain(0.01), 2)
        with pytest.raises(Unavailable):
            await stream.accepted()

    playing(play)


def test_the_metrics_and_the_statistics_say_who_sleeps():
    async def play(client, link, load):
        assert not client.measured().asleep
        client.supervisor.sleep()
        assert client.measured().asleep and client.measured().ready and client.stats()["state"] == "asleep"
        client.submit(ask())
        assert client.measured().asleep and client.stats()["state"] == "waking"
        load()
        assert not client.measured().asleep

    playing(play)


# -- stages of a load --------------------------------------------------------------------------------------------------


def test_a_load_says_what_it_is_at():
    async def play(client, link, load):
        client.supervisor.sleep()
        client.submit(ask())
        client.receive(Loading(Stage("loading big", 40_000_000, 98_000_000)))
        assert client.reason == client.supervisor.waking() == "the engine wakes: loading big, 40 of 98 MB"
        progress = client.supervisor.progress
        assert progress.pop("seconds") >= 0
        assert progress == {"stage": "loading big", "done": 40_000_000, "total": 98_000_000}
        load()
        assert client.supervisor.progress is None and client.supervisor.waking() == ""

    playing(play)


def test_stages_come_with_each_task_and_its_end_and_not_more_often_than_they_can_be_read():
    said, shown, now = [], [], SimpleNamespace(s=100.0)
    stages = Stages(said.append, clock=lambda: now.s)
    screen = Stages(shown.append, clock=lambda: now.s)
    both = Both(screen, stages)
    both.begin("capturing CUDA graphs", 27)
    for _ in range(27):
        now.s += 0.02
        both.advance(1)
    both.note("a license")
    both.begin("warming up", None)
    assert said == shown
    done = [stage.done for stage in said[:-1]]
    assert done[0] == 0 and done[-1] == 27 and 5 <= len(done) <= 8 and done == sorted(done)
    assert str(said[-2]) == "capturing CUDA graphs, 27 of 27" and str(said[-1]) == "warming up"


def test_a_stage_shows_no_path_of_the_server(tmp_path):
    folder = tmp_path / "secret" / "mine"
    folder.mkdir(parents=True)
    said = []
    checkpoint = replace(open_checkpoint("random:tiny-llama"), name=str(folder))
    load_model(checkpoint, dtype=torch.float32, device="cpu", progress=Stages(said.append))
    assert said[0].task == "loading mine"


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sleeper():
    with running("DeadlyCore(slots=8, step_s=0.001)", sleep_after=0.3) as server:
        schedule = server.client.supervisor._schedule
        schedule.MOST, schedule.FIRST_DELAY_S = 1000, 0.0
        yield server


def asleep(server):
    return eventually(lambda: server.http.get("/health").json()["status"] == "asleep")


def test_a_sleeping_engine_has_no_process_and_wakes_with_the_same_answers(sleeper):
    before = sleeper.generate(prompt="a", max_tokens=5, n=2).json()["choices"]
    assert asleep(sleeper) and eventually(lambda: not processes())
    health = sleeper.http.get("/health")
    assert health.status_code == 200 and sleeper.http.get("/health/live").status_code == 200
    metrics = sleeper.http.get("/metrics").text
    assert 'gradus_engine_asleep{model="scripted"} 1.0' in metrics
    assert 'vllm:engine_sleep_state{engine="0",model_name="scripted",sleep_state="discard_all"} 1.0' in metrics
    assert not processes()  # none of these wakes it
    after = sleeper.generate(prompt="a", max_tokens=5, n=2).json()["choices"]
    assert [each["token_ids"] for each in after] == [each["token_ids"] for each in before]
    assert 'gradus_engine_asleep{model="scripted"} 0.0' in sleeper.http.get("/metrics").text


def test_the_time_to_the_first_token_includes_the_wake(sleeper):
    assert asleep(sleeper)
    before = sleeper.client.meter.ttft.sum
    started = time.monotonic()
    assert sleeper.generate(prompt="a", max_tokens=1).status_code == 200
    waited, measured = time.monotonic() - started, sleeper.client.meter.ttft.sum - before
    assert 0.05 < measured <= waited


def test_an_engine_killed_while_it_wakes_is_replaced_and_its_clients_are_told(sleeper):
    assert asleep(sleeper) and eventually(lambda: not processes())
    box = []
    waiting = threading.Thread(target=lambda: box.append(sleeper.generate(prompt="a", max_tokens=3)))
    waiting.start()
    assert eventually(processes)
    processes()[0].kill()
    waiting.join()
    assert box[0].status_code == 503 and box[0].json()["error"]["type"] == "restarting"
    assert eventually(lambda: sleeper.health() == 200)
    assert sleeper.generate(prompt="a", max_tokens=3).json()["token_ids"] == [0, 1, 2]


def test_an_engine_with_work_does_not_sleep(sleeper):
    restarts = sleeper.client.counts.restarts
    frames, done = events(sleeper.generate(prompt="a", max_tokens=1500, stream=True))
    assert done and [token for frame in frames for token in frame["token_ids"]] == list(range(1500))
    assert sleeper.client.counts.restarts == restarts


def test_requests_that_arrive_around_the_time_of_sleep_are_all_answered(sleeper):
    for pause in (0.25, 0.29, 0.3, 0.31, 0.4, 0.55):
        assert sleeper.generate(prompt="a", max_tokens=2).json()["token_ids"] == [0, 1]
        time.sleep(pause)
    assert eventually(sleeper.idle)


def test_a_streaming_client_hears_what_it_waits_for():
    with running(SLOW_START, sleep_after=0.2) as server:
        assert asleep(server)
        with server.http.stream("POST", "/generate", json={"prompt": "a", "max_tokens": 3, "stream": True}) as answer:
            lines = list(answer.iter_lines())
        assert answer.status_code == 200
        comments = [line for line in lines if line.startswith(": ")]
        assert comments and all(line.startswith(": the engine wakes") for line in comments), lines
        frames = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert [token for frame in frames for token in frame["token_ids"]] == [0, 1, 2] and lines[-2] == "data: [DONE]"


def test_a_sleeping_server_counts_tokens_and_checks_requests_without_waking(sleeper):
    assert asleep(sleeper)
    assert sleeper.http.post("/tokenize", json={"prompt": "abc"}).json()["count"] == 3
    assert sleeper.generate(prompt="a", max_tokens=10**6).status_code == 400
    assert sleeper.http.get("/health").json()["status"] == "asleep"


@pytest.mark.stress  # the models of test_pool.py that take turns end and start by the same way
def test_a_real_engine_answers_the_same_after_its_sleep_and_grammars_hold():
    with real_running("random:tiny-llama", device="cpu", dtype="float32", sleep_after=0.4) as server:
        constrained = {"prompt": "abc", "max_tokens": 40, "structured": {"choice": ["yes", "no"]}}
        bodies = [
            {"prompt": "abc", "max_tokens": 12, "temperature": 0},
            {"prompt": "abc", "max_tokens": 12, "temperature": 1, "seed": 7},
        ]
        assert server.generate(**constrained).json()["text"] in ("yes", "no")
        before = [server.generate(**body).json()["token_ids"] for body in bodies]
        assert asleep(server)
        assert server.generate(**constrained).json()["text"] in ("yes", "no")  # and this wakes it
        assert [server.generate(**body).json()["token_ids"] for body in bodies] == before


def test_a_phase_of_the_course_does_not_sleep():
    with pytest.raises(ConfigError, match="sleep_after is for the final engine, not for phase p01"):
        ServerConfig(phase="p01", sleep_after=5.0)
