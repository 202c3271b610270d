"""The client's side of an engine that is silent or fails: when another one is started, and what is refused meanwhile.

The engine is a link that a test plays.
"""

import asyncio
import time

import pytest

from gradus.engine.logprobs import PAIR
from gradus.engine.metrics import Metrics
from gradus.engine.request import SamplingParams, packed_ids
from gradus.server import supervisor
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.child import EngineProcess
from gradus.server.engine.link import link_for
from gradus.server.engine.messages import (
    EngineFailed,
    Failure,
    Loaded,
    LoadFailed,
    Ping,
    Report,
    SampleOutput,
    Submit,
    packed,
)
from gradus.server.engine.thread import EngineThread
from gradus.server.exchange import Ask
from gradus.server.failures import Unavailable
from gradus.server.supervisor import Restarts, Watch
from tests.server.scripted import ScriptedCore, register

FAULT = EngineFailed(Failure("GradusError", "it broke"))


class PlayedLink:
    """Records what the client does."""

    restarts = True

    def __init__(self, loader, config, receive, loop):
        self.started, self.sent, self.killed, self.rested, self.calls = 0, [], 0, 0, []

    def start(self, share=(1, 1)):
        self.started += 1
        self.calls.append("start")

    def send(self, command):
        self.sent.append(command)

    def kill(self):
        self.killed += 1

    def rest(self):
        self.rested += 1
        self.calls.append("rest")

    async def close(self, patience):
        return True


class LastLink(PlayedLink):
    restarts = False


def playing(play, link=PlayedLink, **settings):
    """Run `play(client, link, load)` on an event loop, with a client whose engine has been loaded by `load()`."""

    async def run():
        client = EngineClient(ServerConfig(model=register(ScriptedCore), **settings), "tests.server.scripted", link)
        client.supervisor._schedule.FIRST_DELAY_S = 0.0
        client.start()
        while not client._link.started:
            await asyncio.sleep(0.001)
        info = ScriptedCore().info
        client.receive(Loaded(info, Metrics()))
        try:
            await play(client, client._link, lambda: client.receive(Loaded(info, Metrics())))
        finally:
            await client.close()

    asyncio.run(run())


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def ask():
    return Ask("a", SamplingParams(max_tokens=9, seed=0))


def test_another_engine_is_started_three_times_and_then_each_minute():
    async def play(client, link, load):
        for starts in (2, 3, 4):
            stream = client.submit(ask())
            client.receive(FAULT)
            with pytest.raises(Unavailable, match="it broke") as told:
                await stream.receive()
            assert told.value.kind == "restarting" and told.value.retry_after >= 1
            assert client.state == "restarting"
            await until(lambda starts=starts: link.started == starts)
            load()
            assert client.state == "ready" and client.waiting == 0
        stream = client.submit(ask())
        client.receive(FAULT)
        with pytest.raises(Unavailable) as told:
            await stream.receive()
        assert told.value.kind == "failed" and client.state == "failed"
        assert 55 < told.value.retry_after <= 61 and "it broke; another engine is started in 60 s" in client.reason
        with pytest.raises(Unavailable) as told:
            client.submit(ask())
        assert told.value.kind == "failed" and 55 < told.value.retry_after <= 61
        await asyncio.sleep(0.02)
        assert link.started == 4 and client.supervisor.given_up.is_set()

    playing(play)


def test_a_failed_server_serves_again_as_soon_as_a_start_succeeds():
    async def play(client, link, load):
        client.supervisor._schedule.MOST, client.supervisor._schedule.AGAIN_S = 0, 0.01
        for starts in (2, 3, 4):
            client.receive(FAULT if starts == 2 else LoadFailed(Failure("ConfigError", "the disk is full")))
            assert client.state == "failed" and client.supervisor.given_up.is_set()
            await until(lambda starts=starts: link.started == starts)
        assert "the disk is full" in client.reason
        load()
        assert client.state == "ready" and not client.supervisor.given_up.is_set()
        client.submit(ask())
        assert isinstance(link.sent[-1], Submit)

    playing(play)


@pytest.mark.parametrize("often", [False, True])
def test_a_server_that_shuts_down_starts_no_other_engine(often):
    async def play(client, link, load):
        client.supervisor._schedule.MOST = 0 if often else 3
        client.supervisor._schedule.AGAIN_S = client.supervisor._schedule.FIRST_DELAY_S = 0.01
        client.receive(FAULT)
        await client.drain(0.0)
        await asyncio.sleep(0.05)
        assert link.started == 1 and client.state == ("failed" if often else "draining")

    playing(play)


def test_a_start_that_fails_counts_too():
    async def play(client, link, load):
        client.receive(FAULT)
        for starts in (2, 3):
            await until(lambda starts=starts: link.started == starts)
            client.receive(LoadFailed(Failure("ConfigError", "no memory")))
        await until(lambda: link.started == 4)
        client.receive(LoadFailed(Failure("ConfigError", "no memory")))
        assert client.state == "failed" and "the model could not be loaded: no memory" in client.reason

    playing(play)


def test_a_thread_is_not_started_again():
    async def play(client, link, load):
        client.receive(FAULT)
        assert client.state == "failed" and client.counts.restarts == 0

    playing(play, LastLink)


def test_while_it_drains_an_engine_that_fails_is_not_started_again():
    async def play(client, link, load):
        client.submit(ask())
        draining = asyncio.create_task(client.drain(5))
        await asyncio.sleep(0)
        client.receive(FAULT)
        await asyncio.wait_for(draining, 1)
        assert client.state == "failed" and link.started == 1

    playing(play)


def test_requests_are_refused_between_two_engines_with_the_time_to_return():
    async def play(client, link, load):
        client.receive(FAULT)
        client.supervisor._returns = time.monotonic() + 6.5
        with pytest.raises(Unavailable) as told:
            client.submit(ask())
        assert (told.value.kind, told.value.retry_after) == ("restarting", 7)

    playing(play)


def test_a_new_engine_begins_with_nothing_waiting_and_is_not_taken_for_silent():
    async def play(client, link, load):
        for _ in range(3):
            client.submit(ask())
        assert client.waiting == 3 and not client.supervisor.rests
        client.receive(FAULT)
        assert client.waiting == 0 and client.supervisor.rests
        await until(lambda: link.started == 2)
        load()
        client.receive(Report())
        stream = client.submit(ask())
        assert isinstance(link.sent[-1], Submit)
        handle = link.sent[-1].handle
        client.receive(Report(accepted=[handle], others=[SampleOutput(handle, (5,))]))
        await stream.accepted()
        assert [delta.token_ids for delta in await stream.receive()] == [(5,)]

    playing(play)


def test_rows_of_several_tokens_arrive_without_what_was_not_sampled():
    """As with drafts: a row's tokens come first, and negative numbers of two kinds fill the rest."""

    async def play(client, link, load):
        stream = client.submit(ask(), ask())
        first, second = stream.handles
        pairs = [PAIR.pack(5, -1.0), b"", b"", PAIR.pack(7, -2.0), PAIR.pack(8, -3.0), b""]
        report = Report(accepted=[first, second], width=3, logprobs=pairs)
        report.handles, report.tokens = packed([first, second]), packed_ids([5, -1, -2, 7, 8, -1])
        client.receive(report)
        told = {delta.prompt_index: delta for delta in await stream.receive()}
        assert (told[0].token_ids, told[1].token_ids) == ((5,), (7, 8))
        assert [each.packed for each in (told[0].logprobs, told[1].logprobs)] == [(pairs[0],), (pairs[3], pairs[4])]

    playing(play)


def test_a_prompt_that_is_being_encoded_when_the_engine_fails_is_not_sent_to_the_next_one():
    async def play(client, link, load):
        stream = client.submit(Ask("a" * 10_000, SamplingParams(max_tokens=9)))
        assert client.waiting == 1
        client.receive(FAULT)
        load()
        await until(lambda: not client._beginnings)
        assert not link.sent and client.waiting == 0
        with pytest.raises(Unavailable):
            await stream.accepted()

    playing(play)


def test_a_step_that_hangs_ends_the_engine_and_what_waits():
    async def play(client, link, load):
        stream = client.submit(ask())
        with pytest.raises(Unavailable, match="hangs"):
            await asyncio.wait_for(stream.receive(), 2)
        assert link.killed == 1
        await until(lambda: link.started == 2)

    playing(play, step_timeout=0.1)


def test_silence_counts_from_the_first_command_to_a_resting_engine():
    watch = Watch()
    assert watch.silent_since is None
    watch.sent(1.0)
    watch.sent(2.0)
    assert watch.silent_since == 1.0


def test_every_report_of_a_busy_engine_breaks_the_silence_and_the_last_one_ends_it():
    watch = Watch()
    watch.sent(1.0)
    watch.reported(Report(commands_taken=1, busy=True), 2.0)
    assert watch.silent_since == 2.0
    watch.reported(Report(commands_taken=1, busy=False), 3.0)
    assert watch.silent_since is None


def test_a_command_that_a_report_had_not_seen_is_waited_for():
    watch = Watch()
    watch.sent(1.0)
    watch.sent(2.0)  # while the turn that took the first one ran
    watch.reported(Report(commands_taken=1, busy=False), 3.0)
    assert watch.silent_since == 3.0


def test_starts_are_later_each_time_and_forgotten_after_ten_minutes():
    restarts = Restarts()
    failures = [restarts.next(now) for now in (0.0, 10.0, 20.0, 30.0, 90.0)]
    assert failures == [(0.5, False), (2.0, False), (8.0, False), (60.0, True), (60.0, True)]
    assert restarts.next(625.0) == (8.0, False)  # those of 30 and 90 s count still
    assert restarts.next(1300.0) == (0.5, False)


def test_the_reason_of_a_failed_start_is_the_systems_own_line_without_the_path():
    told = Failure.of(FileNotFoundError(2, "No such file or directory", "/secret/place/model.safetensors"))
    assert told.why == str(told.error()) == "No such file or directory: model.safetensors"
    assert Failure.of(OSError(24, "Too many open files")).why == "Too many open files"
    assert "ZeroDivisionError" in Failure.of(ZeroDivisionError("secret")).why
    assert "secret" not in Failure.of(ZeroDivisionError("secret")).why


def test_an_engine_that_fails_leaves_no_work_in_the_statistics():
    async def play(client, link, load):
        client.submit(ask())
        client.receive(Report(metrics=Metrics(active=8, waiting=32, completed=5), waiting=32, requests=8))
        assert client.stats()["active"] == 8
        client.receive(FAULT)
        stats = client.stats()
        assert (stats["active"], stats["waiting"], stats["cache"], stats["completed"]) == (0, 0, None, 5)

    playing(play)


def test_an_idle_engine_that_hangs_is_found_before_a_request_is(monkeypatch):
    monkeypatch.setattr(supervisor, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(supervisor, "STALL_S", 0.1)

    async def play(client, link, load):
        for turn in range(1, 4):
            await until(lambda turn=turn: len(link.sent) == turn)
            assert isinstance(link.sent[-1], Ping)
            client.receive(Report(turn=turn, commands_taken=turn))
            assert client.state == "ready"
        await until(lambda: client.state == "stalled")
        assert len(link.sent) == 4  # one question is enough
        await until(lambda: link.killed == 1)

    playing(play, step_timeout=0.5)


def test_only_the_final_engine_has_a_process():
    assert link_for(ServerConfig()) is EngineProcess and link_for(ServerConfig(phase="p01")) is EngineThread


def test_reports_that_are_at_hand_together_are_delivered_together_and_before_a_fault():
    async def play(client, link, load):
        stream, written = client.submit(ask()), []
        stream.sink = lambda deltas: written.append([delta.token_ids for delta in deltas]) or True
        client.receive(Report(accepted=stream.handles))
        for turn in (1, 2):
            client.receive(Report(turn=turn, handles=packed(stream.handles), tokens=packed_ids([turn])))
        assert not written
        await until(lambda: written)
        assert written == [[(1,), (2,)]]
        client.receive(Report(turn=3, handles=packed(stream.handles), tokens=packed_ids([3])))
        client.receive(FAULT)
        assert written[1:] == [[(3,)]]
        with pytest.raises(Unavailable, match="it broke"):
            await stream.receive()

    playing(play)
