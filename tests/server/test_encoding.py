"""Slow work on texts takes turns by key, ends with its client, and is bounded."""

import asyncio
import dataclasses
import threading
import time
from functools import partial

import pytest

from gradus.engine.request import SamplingParams
from gradus.errors import RequestError
from gradus.server import encoding
from gradus.server.encoding import EncodingQueue, weight
from gradus.server.exchange import Ask
from gradus.server.failures import ClientGone, RequestFailed, Unavailable
from gradus.server.measures import Counts
from tests.server.conftest import eventually
from tests.server.scripted import ScriptedCore, ScriptedTokenizer
from tests.server.test_restarts import ask, playing, until
from tests.server.test_text import LONG


def queued(play, most=100):
    """Run `play(queue, gate, done)`: the work `done(name)` is noted in `done.names`, and waits until `gate` is set."""

    async def run():
        queue, gate, names = EncodingQueue("texts", most, Counts()), threading.Event(), []

        def work(name):
            gate.wait(5)
            names.append(name)
            return name

        try:
            await play(queue, gate, work, names)
        finally:
            gate.set()
            queue.close()

    asyncio.run(run())


def test_keys_take_turns():
    async def play(queue, gate, work, names):
        jobs = [queue.put("a", 1, partial(work, f"a{number}")) for number in range(4)]
        jobs += [queue.put("b", 1, partial(work, f"b{number}")) for number in range(2)]
        jobs += [queue.put("c", 1, partial(work, "c0"))]
        gate.set()
        assert await asyncio.gather(*jobs) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
        assert names == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]

    queued(play)


def test_work_whose_client_has_left_is_never_done_and_frees_its_place():
    async def play(queue, gate, work, names):
        jobs = [queue.put("a", 1, partial(work, number)) for number in range(100)]
        with pytest.raises(Unavailable):
            queue.check_room(1)
        last = queue.put("a", 1, partial(work, "last"))
        for job in jobs:
            job.cancel()
        await asyncio.sleep(0)
        queue.check_room(1)
        gate.set()
        assert await last == "last"
        assert names == [0, "last"]  # the one that was being done

    queued(play)


def test_texts_that_wait_are_bounded_by_number_and_by_size_and_a_refusal_says_when_to_return():
    async def play(queue, gate, work, names):
        queue.check_room(10 * encoding.MOST_CHARACTERS)  # alone, any text may enter
        jobs = [queue.put("a", encoding.MOST_CHARACTERS - 1, work_of) for work_of in [partial(work, 1)]]
        queue.check_room(1)
        with pytest.raises(Unavailable, match="at most 2, of 64 Mi characters together") as refused:
            queue.check_room(2)
        assert (refused.value.kind, refused.value.retry_after) == ("overloaded", 1)
        jobs.append(queue.put("b", 0, partial(work, 2)))
        with pytest.raises(Unavailable):
            queue.check_room(0)
        assert queue._counts.rejected == 2
        gate.set()
        await asyncio.gather(*jobs)
        queue.check_room(10 * encoding.MOST_CHARACTERS)
        assert not queue._lines and not queue._characters

    queued(play, most=2)


def test_a_bug_ends_its_own_work_and_even_one_that_is_no_exception(caplog):
    class Panic(BaseException):
        pass

    def broken(error):
        raise error

    async def play(queue, gate, work, names):
        gate.set()
        for error in (ZeroDivisionError("secret"), Panic("secret"), SystemExit(3)):
            with pytest.raises(RequestFailed):
                await queue.put("a", 1, partial(broken, error))
        with pytest.raises(RequestError, match="no"):
            await queue.put("a", 1, partial(broken, RequestError("no", param="prompt")))
        assert await queue.put("a", 1, partial(work, "ok")) == "ok"

    queued(play)
    assert caplog.text.count("Traceback") == 3


# -- in the client -----------------------------------------------------------------------------------------------------


def long(samples=1):
    return Ask("a" * 10_000, SamplingParams(max_tokens=9, n=samples))


def broken_send(command):
    raise OverflowError("secret detail")


@pytest.mark.parametrize("asks", [(ask(), ask()), (long(2),), (long(), long())], ids=["short", "long", "two long"])
def test_a_request_that_cannot_be_sent_fails_once_and_leaves_nothing(asks, monkeypatch, caplog):
    monkeypatch.setattr("tests.server.scripted.ScriptedTokenizer.encode", lambda self, text, **_: [1])

    async def play(client, link, load):
        works, link.send = link.send, broken_send
        stream = client.submit(*asks)
        for call in (stream.accepted, stream.receive):
            with pytest.raises(RequestFailed):
                await call()
        assert client.waiting == 0 and client.supervisor.rests and not client._beginnings
        assert not (client._streams or client._samples or client._handles or client.front_end.open_requests)
        assert client.meter.finished == {"error": client.meter.entered}
        link.send = works
        client.submit(ask())
        assert client.waiting == 1 and len(link.sent) == 1

    playing(play)
    assert "secret detail" in caplog.text


def test_prompts_of_clients_that_left_are_not_encoded_and_give_their_places_back_at_once(monkeypatch):
    encoded, gate = [], threading.Event()

    def encode(self, text, **_):
        gate.wait(5)
        encoded.append(text[:1])
        return [1]

    monkeypatch.setattr("tests.server.scripted.ScriptedTokenizer.encode", encode)

    async def play(client, link, load):
        left = [client.submit(long(2)) for _ in range(100)]
        assert client.waiting == 200
        for stream in left:
            stream.cancel()
        assert client.waiting == 0
        stays = client.submit(Ask("b" * 10_000, SamplingParams(max_tokens=9)))
        gate.set()
        await until(lambda: link.sent)
        assert encoded == ["a", "b"]  # one was under way
        assert [type(command).__name__ for command in link.sent] == ["Submit"]
        with pytest.raises(ClientGone):
            await left[0].accepted()
        stays.cancel()

    playing(play)


def test_a_body_of_many_prompts_lets_another_key_in_between(monkeypatch):
    encoded = []
    monkeypatch.setattr(
        "tests.server.scripted.ScriptedTokenizer.encode", lambda self, text, **_: encoded.append(text[:1]) or [1]
    )

    async def play(client, link, load):
        client.submit(*[long() for _ in range(20)], key="greedy")
        client.submit(Ask("b" * 10_000, SamplingParams(max_tokens=9)), key="other")
        await until(lambda: len(link.sent) == 21)
        assert encoded.index("b") <= 2

    playing(play)


@pytest.mark.parametrize("prompt", ["a" * 9, "a" * 10_000], ids=["short", "long"])
def test_more_log_probabilities_of_prompts_than_the_server_allows_are_refused(monkeypatch, prompt):
    monkeypatch.setattr("tests.server.scripted.ScriptedTokenizer.encode", lambda self, text, **_: [1] * 9)

    async def play(client, link, load):
        client.front_end.limits = dataclasses.replace(client.front_end.limits, prompt_logprobs=True)
        for top, accepted in ((1, True), (2, False)):
            try:
                stream = client.submit(Ask(prompt, SamplingParams(max_tokens=1, prompt_logprobs=top)))
                await until(lambda stream=stream: not client._beginnings)
                if stream.ended:
                    await stream.accepted()
                assert accepted
            except RequestError as refused:
                assert refused.param == "prompt_logprobs" and not accepted
        assert len(link.sent) == client.waiting == 1

    playing(play, max_prompt_logprobs=18)


# -- over HTTP ---------------------------------------------------------------------------------------------------------


class SlowTokenizer(ScriptedTokenizer):
    """Takes 0.3 s for a long text, or until `gate` is set, if there is one."""

    def __init__(self, gate=None):
        super().__init__()
        self.encoding, self.gate = threading.Event(), gate

    def encode(self, text, *, special_tokens=True):
        if len(text) < len(LONG):
            return super().encode(text)
        self.encoding.set()
        if self.gate is None:
            time.sleep(0.3)
        else:
            self.gate.wait(10)
        return [1]


def slow(gate=None):
    core = ScriptedCore()
    core.tokenizer = SlowTokenizer(gate)
    return core


@pytest.mark.parametrize(("path", "body"), [("/tokenize", b'{"prompt": "%s"}'), ("/generate", b'{"prompt": "%s"}')])
def test_long_texts_of_clients_that_left_delay_nobody(serving, path, body):
    server = serving(slow, max_waiting=300)
    left = [server.send(body % LONG.encode(), path=path) for _ in range(100)]
    assert server.engine.tokenizer.encoding.wait(5)
    for connection in left:
        server.leave(connection, reset=True)
    assert eventually(lambda: server.client.waiting == 0)
    started = time.monotonic()
    if path == "/tokenize":
        assert server.http.post(path, json={"prompt": "ab"}).json()["tokens"] == [97, 98]
    else:
        assert server.generate(prompt="a" * 5000, max_tokens=1).json()["error"]["param"] == "prompt"  # too long
    assert time.monotonic() - started < 3  # 100 of them would take 30 s


def test_texts_beyond_the_bound_are_refused_with_the_time_to_return(serving):
    server = serving(partial(slow, gate := threading.Event()), max_waiting=3)
    waiting = [server.send(b'{"prompt": "%s"}' % LONG.encode(), path="/tokenize") for _ in range(3)]
    assert eventually(lambda: server.client.texts._jobs == 3)
    refused = server.http.post("/tokenize", json={"prompt": "ab"})
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "overloaded" and server.stats()["rejected"] == 1
    assert server.generate(prompt="a", max_tokens=1).status_code == 200  # another queue
    for connection in waiting:
        server.leave(connection, reset=False)
    gate.set()
    assert eventually(lambda: not server.client.texts._jobs)


def test_a_list_of_token_ids_weighs_more_than_a_text():
    assert (weight("a" * 10), weight([1] * 10)) == (10, 80)
