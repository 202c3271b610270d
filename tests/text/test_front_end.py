"""A front end whose core is elsewhere says the same as one whose core is at hand, a little later."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.logprobs import PAIR, Logprobs
from gradus.engine.request import ModelLimits, SamplingParams
from gradus.engine.sequence import Output, Timings
from gradus.errors import RequestError
from gradus.text.front_end import FrontEnd

LIMITS = ModelLimits(vocab_size=256, context_length=64)
TIMINGS = Timings(queued_s=0.1, ttft_s=0.2, total_s=0.3, tokens=3)


class Bytes:
    """One token per byte; token 255 cannot be decoded, and token 1 is the control token <a>."""

    special_token_ids = frozenset((1,))

    def decode(self, tokens, *, skip_special):
        assert tokens == [1] and not skip_special
        return "<a>"

    def encode(self, text, *, special_tokens=True):
        return list(text.encode())

    def token_bytes(self, token):
        if token == 255:
            raise ValueError("injected")
        return b"" if token == 1 else bytes([token])


class Elsewhere:
    """A core that receives endings and answers later."""

    def __init__(self):
        self.received = []
        self.front_end = FrontEnd(Bytes(), LIMITS, "model", self.end_sample)

    def end_sample(self, *what):
        self.received.append(what)
        return ()

    def read(self, *outputs):
        return self.front_end.read(outputs)


@pytest.fixture
def elsewhere():
    return Elsewhere()


def begun(elsewhere, **params):
    request = elsewhere.front_end.request("prompt", SamplingParams(max_tokens=9, **params), request_id="r")
    elsewhere.front_end.open(request)
    return request


def said(text, index=0, **ending):
    return Output("r", index, tuple(text.encode()), **({"timings": TIMINGS} if ending else {}), **ending)


def test_a_stop_string_is_sent_once_and_later_tokens_of_the_core_are_dropped(elsewhere):
    begun(elsewhere, stop=["END"])
    (first,) = elsewhere.read(said("ab E"))
    (second,) = elsewhere.read(said("NDx"))
    assert (first.text + second.text, second.token_ids, second.completion) == ("ab ", tuple(b"ND"), None)
    assert elsewhere.received == [("r", 0, "stop")]
    (late,) = elsewhere.read(said("yz"))  # was under way already
    assert (late.text, late.token_ids, late.completion) == ("", (), None)
    (last,) = elsewhere.read(said("", finish_reason="stop"))
    done = last.completion
    assert (done.text, done.token_ids) == ("ab ", tuple(b"ab END"))
    assert (done.finish_reason, done.stop_reason, done.timings) == ("stop", "END", TIMINGS)
    assert elsewhere.received == [("r", 0, "stop")] and not elsewhere.front_end.open_requests


def test_a_sample_that_ended_otherwise_before_the_core_heard_of_it_still_stopped(elsewhere):
    begun(elsewhere, stop=["END"])
    elsewhere.read(said("END"))
    (last,) = elsewhere.read(said("and more", finish_reason="length"))
    assert (last.completion.finish_reason, last.completion.stop_reason, last.completion.text) == ("stop", "END", "")
    assert last.token_ids == () and last.completion.token_ids == tuple(b"END")


def test_a_stop_string_in_the_last_output_needs_no_telling(elsewhere):
    begun(elsewhere, stop=["END"])
    (last,) = elsewhere.read(said("aEND", finish_reason="length"))
    assert (last.completion.finish_reason, last.completion.text, elsewhere.received) == ("stop", "a", [])


def test_a_stop_token_that_completes_a_stop_string_is_reported_as_that_string(elsewhere):
    begun(elsewhere, stop=["b<a>"], logprobs=None)
    (last,) = elsewhere.read(Output("r", 0, (*b"ab", 1), finish_reason="stop", stop_reason=1, timings=TIMINGS))
    done = last.completion
    assert (done.text, done.token_ids, done.stop_reason) == ("a", (*b"ab", 1), "b<a>")
    begun(elsewhere, stop=["a<a>"])
    (last,) = elsewhere.read(Output("r", 0, (*b"ab", 1), finish_reason="stop", stop_reason=1, timings=TIMINGS))
    assert (last.completion.text, last.completion.stop_reason) == ("ab", 1)
    begun(elsewhere, stop=["b"])
    (last,) = elsewhere.read(Output("r", 0, tuple(b"ab"), finish_reason="stop", stop_reason=98, timings=TIMINGS))
    assert (last.completion.text, last.completion.stop_reason) == ("a", 98), "a token of text is no text then"


def result(steps, params, ending):
    """Everything that a request with one sample is answered, its log-probabilities and its pieces put together."""
    elsewhere, at, deltas = Elsewhere(), 0, []
    begun(elsewhere, **params)
    for size in steps:
        tokens = TOKENS[at : (at := at + size)]
        last = ending if at == len(TOKENS) else {}
        packed = Logprobs(tuple(PAIR.pack(token, -place) for place, token in enumerate(tokens, at - size)))
        deltas += elsewhere.read(Output("r", 0, tokens, packed, **({"timings": TIMINGS} | last if last else {})))
    done = deltas[-1].completion
    assert done.text == "".join(delta.text for delta in deltas)
    assert done.token_ids == sum((delta.token_ids for delta in deltas), ())
    assert done.logprobs == sum((tuple(delta.logprobs) for delta in deltas), ())
    return done


TOKENS = (*"abé a".encode(), 1, *b"ab c", 1)


@given(
    st.lists(st.integers(0, len(TOKENS)), max_size=6),
    st.lists(st.sampled_from(["a", "ab", "bé", " a", "c", "b c", "\ufffd", "<a>", "a<a>a", "c<a>"]), max_size=2),
    st.integers(0, 4),
    st.sampled_from([{"finish_reason": "length"}, {"finish_reason": "stop", "stop_reason": TOKENS[-1]}]),
)
def test_how_many_tokens_a_step_yields_changes_no_result(cuts, stop, min_tokens, ending):
    """Accepted drafts yield several tokens at once, and any of them may complete a stop string."""
    edges = sorted({0, *cuts, len(TOKENS)})
    params = {"stop": stop, "min_tokens": min_tokens, "logprobs": 0}
    steps = [after - before for before, after in pairwise(edges)]
    assert result(steps, params, ending) == result([1] * len(TOKENS), params, ending)


@given(
    st.text("ab é漢🙂", max_size=12),
    st.sampled_from([{}, {"stop": ["b"]}, {"stop": ["é漢"], "min_tokens": 3}]),
    st.sampled_from(["length", "stop", "error"]),
)
def test_plain_tokens_taken_the_short_way_give_the_same_result(text, params, ending):
    """The short way leaves to the long one what it cannot take; they may alternate."""
    results = []
    for short in (False, True):
        elsewhere = Elsewhere()
        request = elsewhere.front_end.request("p", SamplingParams(max_tokens=60, **params), request_id="r")
        (transcript,) = elsewhere.front_end.open(request)
        deltas = []
        for token in text.encode():
            delta = transcript.plain(token) if short else None
            deltas.append(delta or elsewhere.front_end.read_sample(transcript, Output("r", 0, (token,))))
        last = Output("r", 0, finish_reason=ending, timings=TIMINGS)
        deltas.append(elsewhere.front_end.read_sample(transcript, last))
        results.append((deltas, elsewhere.received))
    assert results[0] == results[1]


def test_a_token_that_cannot_be_decoded_is_left_to_the_long_way(elsewhere):
    request = elsewhere.front_end.request("p", SamplingParams(max_tokens=9), request_id="r")
    (transcript,) = elsewhere.front_end.open(request)
    assert transcript.plain(255) is None
    assert transcript.plain(97).text == "a"


def test_tokens_that_cannot_be_decoded_end_their_sample_alone(elsewhere, caplog):
    begun(elsewhere, n=2)
    bad, good = elsewhere.read(Output("r", 0, (255,)), said("a", index=1))
    assert bad.completion is None and good.text == "a"
    assert elsewhere.received == [("r", 0, "error")]
    elsewhere.read(Output("r", 0, (255,)))  # not looked at any more
    assert elsewhere.received == [("r", 0, "error")]
    (last,) = elsewhere.read(said("x", finish_reason="error"))
    assert (last.completion.finish_reason, last.completion.error) == ("error", "decoding failed: ValueError")
    (other,) = elsewhere.read(said("b", index=1, finish_reason="length"))
    assert (other.completion.text, other.completion.finish_reason) == ("ab", "length")


def test_what_is_said_of_a_closed_request_is_dropped(elsewhere):
    begun(elsewhere)
    elsewhere.front_end.close("r")
    assert elsewhere.read(said("a"), said("", finish_reason="cancelled"), Output("stranger", 0, (1,))) == []


def test_a_request_is_checked_and_nothing_of_it_is_kept(elsewhere):
    with pytest.raises(RequestError, match="max_tokens"):
        elsewhere.front_end.request("prompt", SamplingParams(max_tokens=60))
    request = elsewhere.front_end.request("prompt")
    assert request.prompt == tuple(b"prompt") and not elsewhere.front_end.open_requests


def test_an_id_in_use_is_refused_and_the_one_that_has_it_goes_on(elsewhere):
    request = begun(elsewhere)
    with pytest.raises(RequestError, match="in use"):
        elsewhere.front_end.open(request)
    assert elsewhere.read(said("a"))[0].text == "a"


def test_without_a_tokenizer_prompts_are_token_ids_and_texts_are_empty():
    front_end = FrontEnd(None, LIMITS, "numbers", lambda *_: ())
    for prompt, params in (("text", SamplingParams()), ([1], SamplingParams(stop=["a"]))):
        with pytest.raises(RequestError, match="model numbers came without a tokenizer"):
            front_end.request(prompt, params)
    front_end.open(dataclasses.replace(front_end.request([1, 2]), id="r"))
    (delta,) = front_end.read([said("ab", finish_reason="length")])
    assert (delta.text, delta.completion.text, delta.token_ids) == ("", "", tuple(b"ab"))
