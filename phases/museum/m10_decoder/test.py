"""Streamed text, put together, is the decoder's text, and each character is sent as soon as it is whole."""

from itertools import product
from typing import Any


def streamed(engine: Any, tokens: list[int]) -> list[str]:
    stream = engine.Stream()
    return [*(stream.push(token) for token in tokens), stream.finish()]


def test_whole_characters_are_sent_at_once(engine: Any) -> None:
    assert streamed(engine, [0, 3, 8, 7]) == ["Caf", " ", "né", "!", ""]


def test_a_character_over_several_tokens_arrives_whole(engine: Any) -> None:
    sent = streamed(engine, [0, 1, 2, 4, 5, 6, 7])
    assert "".join(sent) == "Café🦙!", f"the stream says {''.join(sent)!r}"


def test_a_character_is_sent_with_its_last_token(engine: Any) -> None:
    sent = streamed(engine, [1, 2, 7])
    assert sent == ["", "é", "!", ""], f"é is two tokens and ! is one; what was sent is {sent}"


def test_broken_bytes_are_shown_as_the_decoder_shows_them(engine: Any) -> None:
    for tokens in product(range(len(engine.PIECES)), repeat=3):
        sent = "".join(streamed(engine, list(tokens)))
        wanted = engine.decode(list(tokens))
        assert sent == wanted, f"tokens {tokens}: streamed {sent!r}, in one piece {wanted!r}"
