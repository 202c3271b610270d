"""One answer on its way to its client."""

import asyncio
from collections.abc import Callable

from gradus.engine.request import Request
from gradus.engine.sequence import Output
from gradus.errors import GradusError
from phases.p13_serving.text import Text

News = tuple[str, list[int]]
"""Text and tokens not yet sent to the client."""


class Stream:
    """One answer. Everything that arrives until the next `read` is joined, so a slow reader costs no more memory than
    its answer, and the other streams no time.

    generated: tokens so far. error: the engine's reason for refusing the request.
    """

    def __init__(self, request: Request, token_bytes: Callable[[int], bytes]) -> None:
        self.request, self.token_bytes = request, token_bytes
        self.text = Text(request.params.stop)
        self.piece, self.tokens, self.generated = "", list[int](), 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: GradusError | None = None
        self.news = asyncio.Event()

    def push(self, output: Output) -> None:
        """Add a step's tokens. A stop string ends the answer, even if the engine goes on."""
        for token in output.tokens:
            self.tokens.append(token)
            self.generated += 1
            if token != output.stop_reason:  # a stop token is not part of the text
                self.piece += self.text.take(self.token_bytes(token))
            if self.text.stop is not None:
                self.end("stop", self.text.stop)
                return
        if output.finish_reason is not None:
            self.piece += self.text.rest()
            self.end(output.finish_reason, output.stop_reason)
        self.news.set()

    def end(self, reason: str, stop_reason: int | str | None = None, error: GradusError | None = None) -> None:
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error
        self.news.set()

    @property
    def over(self) -> bool:
        """Whether the answer has ended and been read completely."""
        return self.finish_reason is not None and not self.news.is_set()

    async def read(self, whole: bool = False) -> News:
        """Wait for news (or for the whole answer), and take it. Raises a refused request's error."""
        await self.news.wait()
        while whole and self.finish_reason is None:
            self.news.clear()
            await self.news.wait()
        self.news.clear()
        if self.error is not None:
            raise self.error
        news, self.piece, self.tokens = (self.piece, self.tokens), "", []
        return news
