"""Streaming text: whole characters only, nothing of a stop string, and the same as the whole answer."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.text.stops import Controls, failures
from gradus.text.stream import TextStream, piece


def one_byte(token: int) -> bytes:
    """The hardest tokenizer for a stream: every token is a single byte."""
    return bytes([token])


def streamed(data: bytes, stop=(), min_tokens=0, chunk=1):
    stream = TextStream(one_byte, stop, min_tokens)
    deltas = []
    for at in range(0, len(data), chunk):
        deltas.append(stream.push(data[at : at + chunk]))
        if stream.stop_reason:
            break
    deltas.append(stream.finish())
    return deltas, stream


@pytest.mark.parametrize("text", ["plain", "é", "漢字", "👩‍👩‍👧 family", "🇩🇪", "a\u0301", "x" * 50 + "🙂"])
def test_characters_come_whole(text):
    deltas, stream = streamed(text.encode())
    assert "".join(deltas) == stream.text == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_an_unfinished_character_at_the_end_becomes_one_replacement():
    deltas, _ = streamed("ab🙂".encode()[:-1])
    assert deltas[:2] == ["a", "b"] and deltas[-1] == "\ufffd"


def test_a_genuine_replacement_character_is_text_like_any_other():
    assert streamed("a\ufffdb".encode(), stop=["zz"])[1].text == "a\ufffdb"


@given(st.lists(st.binary(max_size=5) | st.text("aé漢🙂", max_size=2).map(str.encode), max_size=20), st.integers(1, 7))
def test_tokens_of_whole_characters_are_as_good_as_their_bytes(tokens, chunk):
    """Between those that end inside a character, or are no characters at all."""
    stream, text = TextStream(lambda token: piece(tokens[token])), ""
    for at in range(0, len(tokens), chunk):
        text += stream.push(range(len(tokens))[at : at + chunk])
        assert stream.text == text
    assert text + stream.finish() == stream.text == b"".join(tokens).decode("utf-8", errors="replace")


@given(st.binary(max_size=60), st.integers(1, 7))
def test_a_stream_of_any_bytes_is_what_decoding_them_at_once_gives(data, chunk):
    deltas, stream = streamed(data, chunk=chunk)
    assert "".join(deltas) == stream.text == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    "text, stop, kept, reason",
    [
        ("hello STOP world", ["STOP"], "hello ", "STOP"),
        ("aab aaab", ["aaab"], "aab ", "aaab"),
        ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
        ("ababac", ["abac"], "ab", "abac"),
        ("xyz", ["z", "yz", "xyz"], "", "xyz"),
        ("no stop STO", ["STOP"], "no stop STO", None),
        ("an é here", ["é"], "an ", "é"),
        ("end", ["end"], "", "end"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_text_ends_before_the_first_stop_string(text, stop, kept, reason, chunk):
    deltas, stream = streamed(text.encode(), stop, chunk=chunk)
    assert "".join(deltas) == stream.text == kept
    assert stream.stop_reason == reason


def test_what_comes_behind_a_stop_string_is_no_text():
    stream = TextStream(lambda token: bytes([token]), ["b"])
    assert stream.push(b"ab") == "a" and stream.push(b"cd") == "" and stream.finish() == ""
    assert (stream.text, stream.stop_reason) == ("a", "b")


def reference(text: str, stop: list[str]) -> str:
    """Return `text` cut at the stop string that is complete first."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_no_piece_of_a_stop_string_is_ever_streamed(text, stop):
    deltas, stream = streamed(text.encode(), stop)
    assert "".join(deltas) == stream.text == reference(text, stop)
    shown = ""
    for delta in deltas:
        shown += delta
        assert reference(text, stop).startswith(shown)


@given(st.lists(st.text("abé", max_size=4), max_size=12), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3))
def test_how_tokens_cut_the_text_does_not_change_where_it_stops(pieces, stop):
    stream = TextStream(lambda token: pieces[token].encode(), stop)
    text = stream.push(range(len(pieces))) + stream.finish()
    assert text == stream.text == reference("".join(pieces), stop)


def test_stop_strings_are_looked_for_only_after_min_tokens():
    assert streamed(b"ababab", ["ab"], min_tokens=3)[1].text == "abab"[:3] + "b"
    assert streamed(b"abc", ["a"], min_tokens=1)[1].text == "abc"


def test_tokens_after_the_stop_string_are_not_decoded():
    stream = TextStream(one_byte, ["b"])
    assert stream.push(b"abcab") == "a" and stream.taken == 2
    assert stream.finish() == "" and stream.text == "a"


@pytest.mark.parametrize(
    "text, stops, size", [("xab", ["abc"], 2), ("aa", ["aab", "ab"], 2), ("aab", ["aac", "bd"], 1)]
)
def test_only_what_could_begin_a_stop_string_is_held_back(text, stops, size):
    stream = TextStream(one_byte, stops)
    assert stream.push(text.encode()) == text[: len(text) - size] and stream.held == text[len(text) - size :]


# -- stop strings that name control tokens -----------------------------------------------------------------------------

NAMES = {256: "<a>", 257: "<b>", 258: "<a"}  # also one that another begins with


def shown(token: int) -> bytes:
    return b"" if token in NAMES else bytes([token])


def tokens_of(*parts):
    """Tokens of texts, and control tokens by their numbers."""
    return [token for part in parts for token in ([part] if isinstance(part, int) else part.encode())]


@pytest.mark.parametrize(
    "tokens, stop, kept, reason",
    [
        (tokens_of("hi", 256, "x"), ["<a>"], "hi", "<a>"),
        (tokens_of("hi<a>x"), ["<a>"], "hi", "<a>"),  # letters that spell it
        (tokens_of("hi", 257, "x"), ["<a>"], "hix", None),
        (tokens_of("hi", 256, "\nx"), ["<a>\n"], "hi", "<a>\n"),
        (tokens_of("hi", 256, "x\n"), ["<a>\n"], "hix\n", None),
        (tokens_of("hi foo", 256, "x"), ["foo<a>"], "hi ", "foo<a>"),
        (tokens_of("hi foo", 257, 256, "x"), ["foo<a>"], "hi foox", None),
        (tokens_of("hi foo", 257, 256, "x"), ["foo<b><a>"], "hi ", "foo<b><a>"),
        (tokens_of("a", 256, "b"), ["ab", "<b>"], "", "ab"),  # the text holds this one, whatever lies between
        (tokens_of("a", 256, "b"), ["<"], "ab", None),  # names no token: only the text counts
        (tokens_of("xy", 256), ["y", "xy<a>"], "x", "y"),
        (tokens_of("xy", 256), ["<a>", "xy<a>"], "", "xy<a>"),  # both at once: the longest
        (tokens_of("hi", 258, ">x"), ["<a>"], "hi", "<a>"),
        (tokens_of("hi", 258), ["<a>"], "hi", None),
    ],
)
def test_a_stop_string_may_name_control_tokens(tokens, stop, kept, reason):
    for chunk in (1, 2, 100):
        stream, text = TextStream(shown, stop, controls=Controls(NAMES)), ""
        for at in range(0, len(tokens), chunk):
            text += stream.push(tokens[at : at + chunk])
        assert text + stream.finish() == stream.text == kept
        assert stream.stop_reason == reason


def test_text_is_held_back_while_a_control_token_may_complete_a_stop_string():
    stream = TextStream(shown, ["foo<a>\n"], controls=Controls(NAMES))
    assert [stream.push([token]) for token in tokens_of("a foo", 256)] == ["a", " ", "", "", "", ""]
    assert stream.held == "foo" and stream.push(tokens_of("f")) == "foo" and stream.held == "f"
    assert stream.push([257]) == "f", "it can no longer become one"


def test_named_control_tokens_are_looked_for_only_after_min_tokens():
    stream = TextStream(shown, ["<a>"], min_tokens=2, controls=Controls(NAMES))
    assert stream.push([256, 97, 98, 256, 99]) == "ab" and stream.taken == 4


def naive(tokens, stop):
    """Return text and stop string by looking at the whole text again after every character."""
    text = spelled = ""
    seen = []  # whether each spelled character is in the text
    for token in tokens:
        for char in NAMES.get(token, chr(token)):
            spelled, visible = spelled + char, token not in NAMES
            seen.append(visible)
            text += char if visible else ""
            ends = []
            for index, each in enumerate(stop):
                if any(name in each for name in NAMES.values()):
                    if spelled.endswith(each):
                        ends.append((len(text) - sum(seen[-len(each) :]), index))
                elif visible and text.endswith(each):
                    ends.append((len(text) - len(each), index))
            if ends:
                at, index = min(ends)
                return text[:at], stop[index]
    return text, None


@given(
    st.lists(st.sampled_from([*b"ab<>", *NAMES]), max_size=24),
    st.lists(st.lists(st.sampled_from(["a", "b", "<", ">", "<a>", "<b>", "<a"]), min_size=1, max_size=4).map("".join),
             min_size=1, max_size=4),
    st.integers(1, 5),
)  # fmt: skip
def test_every_cut_of_the_tokens_stops_where_a_search_of_the_whole_text_does(tokens, stop, chunk):
    stream, text = TextStream(shown, stop, controls=Controls(NAMES)), ""
    for at in range(0, len(tokens), chunk):
        text += stream.push(tokens[at : at + chunk])
        assert naive(tokens, stop)[0].startswith(text)
    assert (text + stream.finish(), stream.stop_reason) == naive(tokens, stop)
    if stream.stop_reason is not None:
        assert naive(tokens[: stream.taken], stop) == naive(tokens, stop)
        assert naive(tokens[: stream.taken - 1], stop)[1] is None, "the token that completes it is the last"


# -- hostile stop strings ----------------------------------------------------------------------------------------------


@given(st.text("ab", min_size=1, max_size=40))
def test_the_failure_function_is_the_longest_beginning_that_is_also_an_end(text):
    for size, found in enumerate(failures(text)[1:], 1):
        fitting = [length for length in range(size) if text[:size].endswith(text[:length])]
        assert found == max(fitting)


def lines(stop, data):
    """Count the lines of Python that reading these bytes, one by one, executes."""
    stream, count = TextStream(one_byte, stop), 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "line"
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        for byte in data:
            stream.push((byte,))
    finally:
        sys.settrace(before)
    assert stream.stop_reason is None
    return count


@pytest.mark.parametrize("answer", [b"a" * 600, b"a" * 300 + b"b" * 300, (b"a" * 250 + b"b") * 3], ids=len)
def test_a_character_costs_as_much_with_long_hostile_stop_strings_as_with_short_ones(answer):
    """Every character agrees with all of them, until the last one, or until many others have to be given up."""

    def hostile(size):
        return ["a" * size + chr(ord("c") + each) for each in range(16)]

    long, short = lines(hostile(255), answer), lines(hostile(3), answer)
    assert long < 1.25 * short
    assert long < 24 * 16 * len(answer), "a bound for each string and character"
