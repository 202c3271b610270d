"""One sample's text so far: the engine's outputs go in, deltas and a completion come out. No torch here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs
from gradus.engine.request import Request
from gradus.engine.sequence import Output
from gradus.text.completion import Completion, Delta
from gradus.text.stops import NO_CONTROLS, Controls
from gradus.text.stream import Piece, TextStream

if TYPE_CHECKING:
    from gradus.text.tools.answer import Ending


class Transcript:
    """Sample `index` of `request`. token_bytes, controls: as in TextStream.

    Without a tokenizer, token_bytes is None, and there is no text.
    over: finds the token with which an answer with calls is over; None: only the engine and stop strings end it.
    ending: the reason if the text has ended before the engine ended the sample: "stop" (a stop string, or the answer is
    over) or "error" (it could not be decoded). The engine's further tokens are dropped, even those of the same step:
    with drafts, a step yields several. The engine's last output still has the timings.
    unread: tokens of whole characters that its owner may append while `simple` is true, instead of calling `plain`:
    their text is read once something depends on it.
    """

    def __init__(
        self,
        request: Request,
        prompt_index: int,
        index: int,
        token_bytes: Callable[[int], Piece] | None,
        controls: Controls = NO_CONTROLS,
        over: "Ending | None" = None,
    ) -> None:
        self.request = request
        self.prompt_index = prompt_index
        self.index = index
        self.ending: Literal["stop", "error"] | None = None
        self._error: str | None = None
        self._over = over
        self._controls = controls
        self._text = TextStream(token_bytes or _nothing, request.params.stop, request.params.min_tokens, controls)
        self.unread: list[int] = []
        self._tokens: list[int] = []
        self._logprobs: list[bytes] = []  # packed: a tenth of the size that objects have
        self._prompt_logprobs = NO_LOGPROBS

    @property
    def simple(self) -> bool:
        """Whether any number of tokens of whole characters would each add its own text, and end nothing."""
        return self.ending is None and self._over is None and self._text.simple

    def plain(self, token: int) -> Delta | None:
        """Take a token that ends nothing and has no log-probability: nearly every token that a server sees.

        Returns None, having taken nothing, if the text is not simply longer by the token's own; `add` takes it then.
        """
        try:
            special = self.ending or (self._over is not None and self._over.may_come(token))
            text = None if special else self._text.plain(token)
        except Exception:  # it happens again in `add`, whose caller deals with it
            return None
        if text is None:
            return None
        if self._over is not None:
            self._over(token)
        self._tokens.append(token)
        return Delta(self.request.id, self.prompt_index, self.index, text, (token,), NO_LOGPROBS)

    def spelled(self, token: int) -> str:
        """The text of a token of whole characters."""
        return self._text.spelled(token)

    def add(self, output: Output) -> Delta:
        """Take one step's tokens. The delta carries the completion if the engine has ended the sequence."""
        if self.unread:
            self._read_on()
        tokens, logprobs = output.tokens, output.logprobs
        before = len(self._tokens)
        self._tokens += tokens
        if logprobs is not NO_LOGPROBS:
            self._logprobs += logprobs.packed
        over = self._until_over(output, before)
        if over is not None:
            text = self._text.push(tokens[:over]) + self._text.finish()
        else:
            text = self._text.push(tokens) if output.finish_reason is None else self._last(output)
        if over is not None or self._text.stop_reason is not None:
            self.ending = "stop"
            kept = self._text.taken - before
            tokens, logprobs = tokens[:kept], logprobs[:kept]
            del self._tokens[self._text.taken :], self._logprobs[self._text.taken :]
        return self._delta(output, tokens, logprobs, text)

    def _read_on(self) -> None:
        """Read the tokens that were not read when they came."""
        self._text.push(self.unread)
        self._tokens += self.unread
        self.unread.clear()

    def _until_over(self, output: Output, before: int) -> int | None:
        """Count the tokens of this step up to the one with which the answer is over; None if it is not."""
        if self._over is None:
            return None
        tokens = output.tokens[:-1] if isinstance(output.stop_reason, int) else output.tokens
        for count, token in enumerate(tokens, 1):
            if self._over(token) and before + count >= self.request.params.min_tokens:
                return count
        return None

    def _last(self, output: Output) -> str:
        """Return the last text of a sequence. A stop token is reported, but is not part of the text.

        One that is a control token adds no text anyway, and may complete a stop string.
        """
        stops = isinstance(output.stop_reason, int) and output.stop_reason not in self._controls.spellings
        return self._text.push(output.tokens[:-1] if stops else output.tokens) + self._text.finish()

    def fail(self, output: Output, error: str) -> Delta:
        """Return the delta of an output that could not be decoded. Later outputs are skipped."""
        self.ending, self._error = "error", error
        return self._delta(output, output.tokens, output.logprobs, "")

    def skip(self, output: Output) -> Delta:
        """Return the empty delta of an output after the ending."""
        return self._delta(output, (), NO_LOGPROBS, "")

    def close(self, delta: Delta, last: Output) -> Delta:
        """Make `delta` the sample's last one. last: the output with which the engine ended the sample."""
        return structs.replace(delta, completion=self._complete(last))

    def _delta(self, output: Output, tokens: tuple[int, ...], logprobs: Logprobs, text: str) -> Delta:
        prompt = output.prompt_logprobs
        if prompt:
            self._prompt_logprobs = prompt
        completion = None if output.finish_reason is None else self._complete(output)
        return Delta(self.request.id, self.prompt_index, self.index, text, tokens, logprobs, completion, prompt)

    def _complete(self, last: Output) -> Completion:
        assert last.finish_reason is not None and last.timings is not None
        return Completion(
            request_id=self.request.id,
            prompt_index=self.prompt_index,
            index=self.index,
            text=self._text.text,
            token_ids=tuple(self._tokens),
            logprobs=None if self.request.params.logprobs is None else Logprobs(tuple(self._logprobs)),
            finish_reason=self.ending or last.finish_reason,
            stop_reason=self._text.stop_reason if self.ending else last.stop_reason,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=last.cached_tokens,
            timings=last.timings,
            error=self._error or last.error,
            prompt_logprobs=None if self.request.params.prompt_logprobs is None else self._prompt_logprobs,
        )


def _nothing(token: int) -> str:
    return ""
