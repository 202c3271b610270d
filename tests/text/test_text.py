"""Streaming text: whole characters only, nothing of a stop string, and the same as the whole answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.text.stream import TextStream, longest_beginning, piece


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


@pytest.mark.parametrize("text, stops, size", [("xab", ["abc"], 2), ("abc", ["abc"], 0), ("aa", ["aab", "ab"], 2)])
def test_only_what_could_begin_a_stop_string_is_held_back(text, stops, size):
    assert longest_beginning(text, stops) == size
