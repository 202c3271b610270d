"""The client's side of an engine that fails: how often another one is started, and what is refused meanwhile.

The engine is a link that a test plays.
"""

import asyncio

import pytest

from gradus.engine.logprobs import PAIR
from gradus.engine.metrics import Metrics
from gradus.engine.request import SamplingParams, packed_ids
from gradus.server.api.ask import Ask
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.child import EngineProcess
from gradus.server.engine.link import link_for
from gradus.server.engine.messages import (
    EngineFailed,
    Failure,
    Loaded,
    LoadFailed,
    Report,
    SampleOutput,
    Submit,
    packed,
)
from gradus.server.engine.thread import EngineThread
from gradus.server.measures import Restarts
from gradus.server.results import Unavailable
from tests.server.scripted import ScriptedCore, register

FAULT = EngineFailed(Failure("GradusError", "it broke"))


class PlayedLink:
    """Records what the client does."""

    restarts = True

    def __init__(self, loader, config, receive, loop):
        self.started, self.sent, self.killed = 0, [], 0

    def start(self):
        self.started += 1

    def send(self, command):
        self.sent.append(command)

    def kill(self):
        self.killed += 1

    async def close(self, patience):
        return True


class LastLink(PlayedLink):
    restarts = False


def playing(play, link=PlayedLink, **settings):
    """Run `play(client, link, load)` on an event loop, with a client whose engine has been loaded by `load()`."""

    async def run():
        client = EngineClient(ServerConfig(model=register(ScriptedCore), **settings), "tests.server.scripted", link)
        client._restarts.FIRST_DELAY_S = 0.0
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


def test_another_engine_is_started_three_times_and_then_no_more():
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
        await asyncio.sleep(0.02)
        assert link.started == 4 and client.counts.restarts == 3

    playing(play)


def test_a_start_that_fails_counts_too():
    async def play(client, link, load):
        client.receive(FAULT)
        for starts in (2, 3):
            await until(lambda starts=starts: link.started == starts)
            client.receive(LoadFailed(Failure("ConfigError", "no memory")))
        await until(lambda: link.started == 4)
        client.receive(LoadFailed(Failure("ConfigError", "no memory")))
        assert client.state == "failed" and "could not be loaded" in client.reason

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
        client._load_s, client._restart_ends = 7.0, client._loop.time() + 6.5
        with pytest.raises(Unavailable) as told:
            client.submit(ask())
        assert (told.value.kind, told.value.retry_after) == ("restarting", 7)

    playing(play)


def test_a_new_engine_begins_with_nothing_waiting_and_is_not_taken_for_silent():
    async def play(client, link, load):
        for _ in range(3):
            client.submit(ask())
        assert client.waiting == 3 and client._watch.silent_since is not None
        client.receive(FAULT)
        assert client.waiting == 0 and client._watch.silent_since is None
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


def test_starts_are_later_each_time_and_forgotten_after_ten_minutes():
    restarts = Restarts()
    assert [restarts.delay(now) for now in (0.0, 10.0, 20.0, 30.0)] == [0.5, 2.0, 8.0, None]
    assert restarts.delay(599.0) is None
    assert restarts.delay(601.0) == 8.0


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
