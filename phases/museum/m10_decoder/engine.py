"""A byte-level tokenizer: its pieces are bytes, so a character may be spread over several tokens.

The decoder turns the bytes of many tokens into text. A server cannot wait for all of them: it sends each token's text
as soon as the token is there.

Streamed answers had broken accents and emoji. In one piece, the same answers were right.
"""

PIECES = [b"Caf", b"\xc3", b"\xa9", b" ", b"\xf0\x9f", b"\xa6", b"\x99", b"!", "né".encode(), b"\xff"]


def decode(tokens: list[int]) -> str:
    """The text of tokens. Bytes that are no UTF-8 become �, one for each broken character."""
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", errors="replace")


class Stream:
    """Text as it is sent: `push` a token, send what it returns, and `finish` at the end."""

    def push(self, token: int) -> str:
        """The text that can be sent now that this token is there."""
        return decode([token])

    def finish(self) -> str:
        """The text that is left after the last token."""
        return ""


def show() -> None:
    tokens = [0, 1, 2, 3, 4, 5, 6, 7]
    stream = Stream()
    print("in one piece:", decode(tokens))
    print("streamed:    ", "".join(stream.push(token) for token in tokens) + stream.finish())
