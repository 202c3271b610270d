"""The promises of p13's parts: a bounded queue, frames that every client reads, text that stops, an orderly end.

Each case is small enough to work out by hand.
"""

import asyncio
import itertools
import json
import time

import pytest

from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output
from phases.p13_serving.admission import MOST_RETRY_S, Admission, Refused
from phases.p13_serving.desk import Desk
from phases.p13_serving.engine_thread import Cancel, Report
from phases.p13_serving.events import LINE_ENDS, encode, event
from phases.p13_serving.text import Text, beginning
from tests.phases.conftest import about, of

# -- the bounded queue -------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def full(places=2):
    """Make a queue whose places are all taken, at its clock's 100 s."""
    clock = Clock()
    admission = Admission(places, clock)
    for _ in range(places):
        admission.enter()
    return admission, clock


def refusal(admission):
    """Return the refusal of one more request; None if it is let in."""
    try:
        admission.enter()
    except Refused as refused:
        return refused
    return None


@of("p13")
def test_as_many_requests_enter_as_there_are_places_and_the_next_is_refused(phase):
    admission, _ = full(places=3)
    found = refusal(admission)
    assert found is not None, "3 places are taken, so a fourth request must be refused; yours let it in"
    assert (found.status, found.kind) == (503, "overloaded"), f"503, overloaded; yours: {found.status}, {found.kind}"
    assert isinstance(found.retry_after, int), f"Retry-After is a whole number of seconds; yours: {found.retry_after!r}"


@of("p13")
def test_a_refused_request_takes_no_place_and_one_that_leaves_frees_exactly_one(phase):
    admission, _ = full(places=2)
    refusal(admission)
    admission.leave()
    found = [refusal(admission) is None for _ in range(2)]
    assert found == [True, False], f"one place is free, for one request: [True, False]; yours let in {found}"
    assert admission.inside == 2, f"2 are inside; yours counts {admission.inside}"


@of("p13")
@pytest.mark.parametrize(
    ("departures", "now", "wanted", "why"),
    [
        ((103, 106), 106, 3, "2 left in 6 s"),
        ((102,), 110, 10, "1 left in 10 s, and the 8 s since then count"),
        ((), 120, 20, "none has left in 20 s"),
        ((105, 105.0), 105, 3, "2 left in 5 s: 2.5 s, rounded up"),
        ((100.1, 100.2), 100.2, 1, "less than a second is one"),
        ((), 4000, MOST_RETRY_S, "more than a minute is a minute"),
    ],
)
def test_the_time_to_come_back_is_the_pace_of_the_departures(phase, departures, now, wanted, why):
    admission, clock = full(places=4)
    for clock.now in departures:
        admission.leave()
        admission.enter()
    clock.now = now
    found = admission.retry_after()
    assert found == wanted and isinstance(found, int), f"begun at 100 s, {why}: {wanted} s; yours says {found!r}"


@of("p13")
def test_time_in_which_nobody_was_there_does_not_count(phase):
    admission, clock = full(places=1)
    clock.now = 101
    admission.leave()
    clock.now = 1001
    admission.enter()
    clock.now = 1003
    found = admission.retry_after()
    assert found == 2, f"empty from 101 s to 1001 s, and none has left in the 2 s since: 2 s; yours says {found}"


@of("p13")
def test_only_the_latest_departures_tell_the_pace(phase):
    admission, clock = full(places=2)
    for seconds in [50] * 40 + [2] * 32:
        clock.now += seconds
        admission.leave()
        admission.enter()
    found = admission.retry_after()
    assert found == 2, f"the last 32 left every 2 s, those before every 50 s: 2 s; yours says {found}"


# -- frames ------------------------------------------------------------------------------------------------------------


def messages(stream: bytes) -> list[str]:
    """Read a stream as the standard says: lines, fields, and an empty line that ends an event."""
    found, lines = [], []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and lines:
            found.append("\n".join(lines))
            lines = []
    assert not lines, f"an event ends at an empty line; yours leaves {lines} open"
    return found


@of("p13")
@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("a", b"data: a\n\n"),
        ("", b"data: \n\n"),
        ("a\nb", b"data: a\ndata: b\n\n"),
        ("a\r\nb\rc", b"data: a\ndata: b\ndata: c\n\n"),
        ("a\n\nb\n", b"data: a\ndata: \ndata: b\ndata: \n\n"),
        (" a", b"data:  a\n\n"),
        ("€", b"data: \xe2\x82\xac\n\n"),
        ("a\u2028b", "data: a\u2028b\n\n".encode()),
    ],
)
def test_each_line_of_a_message_is_a_line_of_its_event(phase, message, wanted):
    found = event(message)
    assert found == wanted, f"{message!r} is framed as {wanted!r}; yours: {found!r}"


@of("p13")
def test_a_client_reads_what_was_sent_message_by_message(phase):
    sent = ["one", "", "two\nlines", "data: x", ": no comment", "[DONE]"]
    found = messages(b"".join(map(event, sent)))
    assert found == sent, f"sent {sent}; of yours a client reads {found}"


@of("p13")
@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\x1c", *LINE_ENDS])
def test_json_is_one_line_whatever_a_client_takes_for_its_end(phase, end):
    found = encode({"text": f"a{end}b", "n": 1})
    assert len(found.splitlines()) == 1, f"Python splits yours in {found.splitlines()}: {end!r} must be escaped"
    assert json.loads(found) == {"text": f"a{end}b", "n": 1}, f"a client reads {json.loads(found)} of yours"


@of("p13")
def test_json_keeps_other_characters_and_wastes_no_blanks(phase):
    content = {"text": 'é€ "\\u2028"', "ids": [1, 2]}
    wanted = r'{"text":"é€ \"\\u2028\"","ids":[1,2]}'
    assert encode(content) == wanted, f"{content} is {wanted}; yours: {encode(content)}"


@of("p13")
def test_what_is_no_json_is_not_sent(phase):
    try:
        found = encode({"logprob": float("nan")})
    except ValueError as refused:
        assert "JSON" in str(refused) or "float" in str(refused), f"the error is JSON's own; yours: {refused}"
    else:
        raise AssertionError(f"NaN is no JSON, so encode raises ValueError; yours returns {found}")


# -- text --------------------------------------------------------------------------------------------------------------


def spoken(tokens, stops):
    """Feed tokens until one completes a stop string, as a stream does. Returns the pieces, and the string."""
    text, pieces = Text(stops), []
    for token in tokens:
        pieces.append(text.take(token))
        if text.stop is not None:
            return pieces, text.stop
    return [*pieces, text.rest()], text.stop


def cuts(text: bytes):
    """Every way to divide bytes into tokens."""
    for places in itertools.product([False, True], repeat=len(text) - 1):
        ends = [place + 1 for place, cut in enumerate(places) if cut]
        yield [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@of("p13")
@pytest.mark.parametrize(
    ("text", "stops", "wanted", "stop"),
    [
        ("hi END x", ["END"], "hi ", "END"),
        ("a EN", ["END"], "a EN", None),
        ("aaab", ["aab"], "a", "aab"),
        ("abcde", ["bcd", "c"], "ab", "c"),
        ("xabab", ["abab"], "x", "abab"),
        ("1€!2", ["€!"], "1", "€!"),
        ("ENEND", ["END"], "EN", "END"),
        ("a END b END", ["END"], "a ", "END"),
        ("no stop", [], "no stop", None),
    ],
)
def test_text_ends_before_the_first_complete_stop_string_however_tokens_divide_it(phase, text, stops, wanted, stop):
    for tokens in cuts(text.encode()):
        pieces, found = spoken(tokens, stops)
        joined = "".join(pieces)
        assert (joined, found) == (wanted, stop), (
            f"{tokens} with stop {stops} is {wanted!r}, stopped by {stop!r}; yours: {joined!r}, by {found!r}"
        )


@of("p13")
@pytest.mark.parametrize(
    ("tokens", "wanted", "why"),
    [
        ([b"hi ", b"E", b"N", b"x"], ["hi ", "", "", "ENx", ""], "E and EN may begin END, ENx does not"),
        ([b"hi", b"!"], ["hi", "!", ""], "nothing of it may begin END, so nothing waits"),
        ([b"\xe2", b"\x82\xac"], ["", "€", ""], "half a character is no text yet"),
        ([b"ab", b"\xe2"], ["ab", "", "\ufffd"], "the end leaves half a character, which becomes a replacement one"),
        ([b"aE", b"E"], ["a", "E", "E"], "the second E may begin END, the first no more"),
    ],
)
def test_text_is_sent_as_soon_as_it_is_certain(phase, tokens, wanted, why):
    found, _ = spoken(tokens, ["END"])
    assert found == wanted, f"{tokens} come out as {wanted}: {why}; yours: {found}"


@of("p13")
def test_what_was_held_back_is_given_out_once(phase):
    text = Text(["END"])
    text.take(b"EN")
    found = text.rest(), text.rest()
    assert found == ("EN", ""), f"EN was held back, and then nothing: ('EN', ''); yours: {found}"


@of("p13")
def test_nothing_is_held_back_behind_a_stop_string(phase):
    text = Text(["END"])
    found = text.take(b"a EN"), text.take(b"D"), text.rest()
    assert found == ("a ", "", ""), (
        f"EN was held back and became END, which ends the text: ('a ', '', ''), the last one by `rest`; yours: {found}"
    )


@of("p13")
@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("xEN", ["END"], 2),
        ("aba", ["abab"], 3),
        ("x", ["END"], 0),
        ("ab", ["bc", "abc"], 2),
        ("", ["a"], 0),
        ("a", [], 0),
    ],
)
def test_as_much_is_held_back_as_may_begin_a_stop_string(phase, text, stops, wanted):
    found = beginning(text, stops)
    assert found == wanted, f"the last {wanted} characters of {text!r} may begin one of {stops}; yours says {found}"


# -- the desk ----------------------------------------------------------------------------------------------------------


class Words:
    """A tokenizer: a character is a token by its code. encoding: seconds for a prompt."""

    encoding = 0.0

    def encode(self, text):
        time.sleep(self.encoding)
        return list(text.encode())

    def token_bytes(self, token):
        return bytes([token])


def desk(sent, places=4):
    """Make a desk whose messages to the engine are gathered in `sent`."""
    return Desk(ModelLimits(vocab_size=256, context_length=64), Words(), Admission(places), sent.append, timeout=60)


def ended(stream, reason="length"):
    """Make the report of a step in which the engine ends a stream with the token "x"."""
    return Report([Output(stream.request.id, 0, (ord("x"),), finish_reason=reason)])


async def within(seconds, task, what):
    """Wait for something that must end by then: what it must do, and what has come first."""
    done, _ = await asyncio.wait({asyncio.ensure_future(task)}, timeout=seconds)
    assert done, f"{what}; yours still waits after {seconds} s"
    return done.pop().result()


PARAMS = SamplingParams(max_tokens=8)


@of("p13")
@about("desk")
def test_when_a_client_leaves_the_engine_is_told_and_the_place_is_free(phase):
    async def scene():
        sent = []
        front = desk(sent)
        stream = await front.submit("ab", PARAMS)
        front.cancel(stream)
        cancels = [message for message in sent if isinstance(message, Cancel)]
        assert cancels == [Cancel(stream.request.id)], f"the engine must be told to cancel it; yours sent {cancels}"
        assert front.admission.inside == 0, f"its place is free; yours counts {front.admission.inside} inside"
        await within(1, stream.read(), "the stream's reader wakes up, since nothing more will come")
        assert stream.finish_reason == "cancelled", f"it ends as cancelled; yours as {stream.finish_reason}"
        front.on_report(ended(stream))
        assert stream.finish_reason == "cancelled", "what the engine still sends for it is dropped"

    asyncio.run(scene())


@of("p13")
@about("desk")
def test_an_answer_that_has_ended_cannot_be_cancelled_and_none_can_be_twice(phase):
    async def scene():
        sent = []
        front = desk(sent)
        first, second = await front.submit("a", PARAMS), await front.submit("b", PARAMS)
        front.on_report(ended(first))
        front.cancel(first)
        assert first.finish_reason == "length", f"it had ended by its length; yours says {first.finish_reason}"
        front.cancel(second)
        front.cancel(second)
        cancels = [message.request_id for message in sent if isinstance(message, Cancel)]
        assert cancels == [second.request.id], f"one cancellation, of {second.request.id}; yours sent {cancels}"
        assert front.admission.inside == 0, f"both have left; yours counts {front.admission.inside} inside"

    asyncio.run(scene())


async def draining(front, seconds):
    """Begin to drain. Returns the task, which then waits."""
    task = asyncio.create_task(front.drain(seconds))
    await asyncio.sleep(0.01)
    return task


@of("p13")
@about("desk")
def test_a_server_that_drains_lets_nobody_in_and_says_when_to_come_back(phase):
    async def scene():
        front = desk([])
        await front.submit("a", PARAMS)
        task = await draining(front, 2.5)
        try:
            await front.submit("b", PARAMS)
            raise AssertionError("b comes after the drain has begun, and must be refused; yours let it in")
        except Refused as refused:
            found = refused.kind, refused.retry_after
        assert found == ("draining", 3), f"refused as draining, for 2.5 s rounded up: 3; yours: {found}"
        task.cancel()

    asyncio.run(scene())


@of("p13")
@about("desk")
def test_a_drain_ends_with_the_last_request_and_not_before(phase):
    async def scene():
        front = desk([])
        streams = [await front.submit(text, PARAMS) for text in "ab"]
        task = await draining(front, 30)
        front.on_report(ended(streams[0]))
        await asyncio.sleep(0.01)
        assert not task.done(), "one request is still inside, so the drain goes on; yours is over"
        front.on_report(ended(streams[1]))
        await within(1, task, "the last request has ended, and so does the drain, of 30 s at most")
        found = [stream.finish_reason for stream in streams]
        assert found == ["length", "length"], f"both had time to end; yours ended them as {found}"

    asyncio.run(scene())


@of("p13")
@about("desk")
def test_those_that_are_inside_when_the_time_is_up_are_cancelled(phase):
    async def scene():
        sent = []
        front = desk(sent)
        streams = [await front.submit(text, PARAMS) for text in "abc"]
        front.on_report(ended(streams[0]))
        await within(2, front.drain(0.02), "two requests go on, so after 0.02 s the drain cancels them and ends")
        found = [stream.finish_reason for stream in streams]
        assert found == ["length", "cancelled", "cancelled"], f"one had ended, two are cancelled; yours: {found}"
        told = [message.request_id for message in sent if isinstance(message, Cancel)]
        assert told == [stream.request.id for stream in streams[1:]], f"the engine hears of two; yours told it {told}"
        assert front.admission.inside == 0, f"nobody is inside; yours counts {front.admission.inside}"

    asyncio.run(scene())


@of("p13")
@about("desk")
def test_an_empty_server_is_drained_at_once(phase):
    asyncio.run(within(1, desk([]).drain(30), "no request is inside, so a drain of 30 s ends at once"))


@of("p13")
@about("desk")
def test_a_request_whose_prompt_is_being_encoded_counts_as_inside_and_is_turned_away(phase):
    async def scene():
        sent = []
        front = desk(sent)
        front.tokenizer.encoding = 0.05
        entering = asyncio.create_task(front.submit("a", PARAMS))
        await asyncio.sleep(0.01)
        await within(5, front.drain(30), "a's prompt is encoded in 0.05 s, so a drain of 30 s ends soon after")
        with pytest.raises(Refused):
            await entering
        assert not [message for message in sent if isinstance(message, Request)], "the engine never hears of it"

    asyncio.run(scene())
