"""A decoder that keeps its place: it holds back the bytes of a character until the last one has come."""

from codecs import getincrementaldecoder

from phases.museum.m10_decoder import engine
from phases.museum.m10_decoder.engine import PIECES
from phases.museum.m10_decoder.engine import decode as decode


class Stream(engine.Stream):
    """Shows every token to one decoder, which knows the tokens before it."""

    def __init__(self) -> None:
        self.decoder = getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that can be sent now that this token is there."""
        return self.decoder.decode(PIECES[token])

    def finish(self) -> str:
        """The text that is left after the last token."""
        return self.decoder.decode(b"", final=True)
