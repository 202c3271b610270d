"""The size of an answer is bounded, and writing the largest one delays no other request."""

import asyncio
import gc
import json
import time
from functools import cache, partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.logprobs import PAIR, Logprobs, TokenLogprob
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Timings
from gradus.errors import RequestError
from gradus.server.api.chat import ChatCompletion, ChatEncoder, Shown
from gradus.server.api.completions import Completions, CompletionsEncoder, Shape
from gradus.server.api.frames import Each, Later, encode, event, event_pieces, pieces
from gradus.server.api.generate import GenerateEncoder
from gradus.server.api.openai import StreamOptions
from gradus.server.api.responses.answer import ResponseEncoder
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.server.exchange import Ask, Chat
from gradus.server.http.slices import SLICE_BYTES, WHOLE_BYTES, JsonInSlices, slices
from gradus.server.limits import check_logprobs, logprobs_limit
from gradus.server.measures import Tally
from gradus.server.results import JOINED, merged
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd
from tests.server.conftest import eventually, running
from tests.server.saying import SayingCore
from tests.server.scripted import ScriptedCore, ScriptedTokenizer

# -- the bound ---------------------------------------------------------------------------------------------------------

CONTEXT = 1000


def asks(count=1, prompt="ab", **params):
    return [Ask(prompt, SamplingParams(**params))] * count


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        (asks(max_tokens=10, logprobs=4), 50),
        (asks(max_tokens=10, logprobs=0, n=3), 30),
        (asks(logprobs=1), 2 * CONTEXT),
        (asks(max_tokens=10**9, logprobs=1), 2 * CONTEXT),
        (asks(3, max_tokens=10, logprobs=4), 150),
    ],
)
def test_the_product_of_samples_tokens_and_logprobs_is_bounded(asked, most):
    check_logprobs(asked, CONTEXT, most)
    with pytest.raises(RequestError, match="lower n, max_tokens, logprobs") as caught:
        check_logprobs(asked, CONTEXT, most - 1)
    assert caught.value.got == most and "\n" not in str(caught.value)


def test_answers_without_logprobs_have_no_such_bound():
    check_logprobs(asks(100, n=128), 10**6, 1)


@pytest.mark.parametrize(("context", "most"), [(None, 1 << 21), (4096, 1 << 21), (131_072, 21 * 131_072)])
def test_one_sample_may_have_all_logprobs_of_a_whole_context(context, most):
    limits = context and ModelLimits(vocab_size=10, context_length=context)
    info = context and ModelInfo("m", "final", None, "cpu", "float32", limits, {})
    assert logprobs_limit(ServerConfig(), info) == most
    assert logprobs_limit(ServerConfig(max_answer_logprobs=77), info) == 77
    check_logprobs(asks(logprobs=20), context or 1, most)


MESSAGES = [{"role": "user", "content": "Hi"}]
LARGE = [
    ("/generate", {"prompt": "a", "max_tokens": 30, "logprobs": 4, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 30, "logprobs": 4}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 30, "logprobs": True, "top_logprobs": 4, "n": 2}),
    (
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 60, "include": ["message.output_text.logprobs"], "top_logprobs": 4},
    ),
]


@pytest.fixture(scope="module")
def small():
    with running(SayingCore, max_answer_logprobs=299) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), LARGE)
def test_every_protocol_keeps_the_bound(small, path, body, stream):
    refused = small.http.post(path, json={**body, "stream": stream})
    assert refused.status_code == 400
    assert "299" in refused.json()["error"]["message"]
    assert small.stats()["limits"]["max_answer_logprobs"] == 299


# -- content in pieces -------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def described(value):
    """The same content, each array by `Each` and each third object by `Later`."""
    match value:
        case list():
            return Each(described, value)
        case dict() if len(value) % 3 == 0:
            return Later(lambda: {name: described(each) for name, each in value.items()})
        case dict():
            return {name: described(each) for name, each in value.items()}
    return value


@given(JSON)
def test_pieces_join_to_the_bytes_of_the_whole(content):
    assert b"".join(pieces(described(content))) == encode(content)
    assert b"".join(event_pieces(described(content), "name")) == event(content, "name")


def test_what_is_not_json_is_a_fault_in_pieces_too():
    with pytest.raises(NotImplementedError, match="object is not JSON"):
        list(pieces({"a": object()}))


def test_later_content_is_made_after_all_before_it():
    made = []
    content = {"a": Each(made.append, range(20)), "b": Later(lambda: len(made))}
    assert json.loads(b"".join(pieces(content)))["b"] == 20


# -- the largest answers -----------------------------------------------------------------------------------------------

LONGEST_S = 0.05
SAMPLES, TOKENS, TOP = 8, 600, 20  # 100,800 log-probabilities: a twentieth of the limit, so that a test takes a second


def token(at):
    return TokenLogprob(at % 900, -1.5, tuple((other, -2.0 - other) for other in range(TOP)))


@cache
def logprobs_of(tokens):
    return tuple(map(token, range(tokens)))


def completion(index=0, tokens=TOKENS):
    logprobs = logprobs_of(tokens)
    ids = tuple(each.token_id for each in logprobs)
    timings = Timings(queued_s=0.0, ttft_s=0.1, total_s=0.2, tokens=tokens)
    text = "a\u2028" * tokens
    return Completion("gen-1", 0, index, text, ids, logprobs, "length", None, 1, 0, timings, prompt_logprobs=logprobs)


def front_end():
    limits = ModelLimits(vocab_size=1000, context_length=8192, prompt_logprobs=True)
    return FrontEnd(ScriptedTokenizer(), limits, "scripted", lambda *_: ())


def encoder(protocol, samples):
    """An encoder of an answer with log-probabilities, without a server around it."""
    front, params = front_end(), SamplingParams(n=samples, logprobs=TOP, prompt_logprobs=TOP, max_tokens=TOKENS)
    ask = Ask("a", params)
    request = Request.create("gen-1", [1], params, front.limits)
    if protocol == "generate":
        return GenerateEncoder("scripted", params, Tally(samples))
    if protocol == "completions":
        shape = Shape(StreamOptions(), echo=True, logprobs=TOP, prompt_logprobs=TOP)
        return CompletionsEncoder(Completions((ask,), ("a",), shape, False, (), "scripted", front), [request.prompt])
    if protocol == "chat":
        asked = ChatCompletion(Ask(Chat(MESSAGES), params), False, StreamOptions(), Shown(logprobs=True), front)
        return ChatEncoder(asked, type("Accepted", (), {"requests": {"gen-1": request}}))
    return ResponseEncoder(Ask(Chat(MESSAGES), params), request, front, {}, {})


def delta(done):
    packed = Logprobs(tuple(PAIR.pack(1, -1.0) * (TOP + 1) for _ in done.token_ids))
    return Delta(done.request_id, 0, done.index, done.text, done.token_ids, packed, done, packed)


PROTOCOLS = {"generate": SAMPLES, "completions": SAMPLES, "chat": SAMPLES, "responses": 1}


async def longest_pause(answer):
    """The longest time, in seconds of its thread, for which `answer` keeps other callbacks waiting; and its bytes."""
    loop, longest, last, over = asyncio.get_running_loop(), 0.0, time.thread_time(), False

    def turn():
        nonlocal longest, last
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
        if not over:
            loop.call_soon(turn)

    loop.call_soon(turn)
    found = [data async for data in answer]
    over = True
    turn()
    return longest, found


@pytest.mark.parametrize(("protocol", "samples"), PROTOCOLS.items())
def test_writing_a_large_answer_delays_no_other_request(protocol, samples):
    """Without slices, each takes 0.1 s or more."""
    completions = [completion(index, TOKENS * SAMPLES // samples) for index in range(samples)]
    best = float("inf")
    gc.collect()
    for _ in range(3):
        pause, found = asyncio.run(longest_pause(slices(encoder(protocol, samples).whole(completions))))
        best = min(best, pause)
        assert max(map(len, found)) < 2 * SLICE_BYTES
        if best < LONGEST_S:
            break  # a first pause may have been another program's
    answer = b"".join(found)
    assert best < LONGEST_S
    assert len(answer) > 3_000_000 and msgspec.json.decode(answer)


@pytest.mark.parametrize(("protocol", "samples"), PROTOCOLS.items())
def test_the_end_of_a_large_stream_delays_no_other_request(protocol, samples):
    """A response repeats its log-probabilities in its last events; a prompt's come with the first chunk."""

    def frames(writer):
        yield from writer.frames([delta(completion(tokens=TOKENS))])
        yield from writer.end()

    pauses = (asyncio.run(longest_pause(slices(frames(encoder(protocol, samples)))))[0] for _ in range(3))
    assert any(pause < LONGEST_S for pause in pauses)


def test_joined_deltas_with_logprobs_stay_small():
    parts = [delta(completion(tokens=1)) for _ in range(100)]
    assert max(len(each.token_ids) for each in merged(parts)) == JOINED
    assert sum(len(each.token_ids) for each in merged(parts)) == 100
    assert merged(parts)[0].prompt_logprobs is parts[0].prompt_logprobs


@pytest.mark.parametrize("size", [0, 10, WHOLE_BYTES, WHOLE_BYTES + 1, 10 * WHOLE_BYTES])
def test_an_answer_has_a_length_if_it_is_small_and_is_chunked_otherwise(size):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        await asyncio.sleep(60)

    response = JsonInSlices((b"a" for _ in range(size)), {"x-a": "b"}, timeout=5)
    asyncio.run(response({"type": "http"}, receive, send))
    headers = dict(sent[0]["headers"])
    assert headers.get(b"content-length") == (str(size).encode() if size <= WHOLE_BYTES else None)
    assert headers[b"x-a"] == b"b" and headers[b"content-type"] == b"application/json"
    assert b"".join(message["body"] for message in sent[1:]) == b"a" * size
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


def test_an_answer_for_a_client_that_has_left_is_not_written_to_its_end():
    made = 0

    def pieces():
        nonlocal made
        for made in range(1000):  # noqa: B007
            yield b"a" * SLICE_BYTES

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    asyncio.run(JsonInSlices(pieces(), {}, timeout=5)({"type": "http"}, receive, send))
    assert made < 10


def test_a_client_that_does_not_read_its_answer_is_cut():
    """32 MB is more than sockets hold."""
    with running(partial(ScriptedCore, piece="x" * 65536), write_timeout=0.3) as server:
        stalled = server.send(b'{"prompt": "a", "max_tokens": 250, "n": 2}')
        assert eventually(lambda: server.stats()["completed"] == 2)
        assert eventually(lambda: len(server.server.server_state.connections) == 1)
        stalled.close()
