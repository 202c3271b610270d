"""/v1/completions: OpenAI's legacy protocol. Text or token ids in, their continuation out.

A body may hold several prompts: each is a request to the engine, and choice `prompt * n + sample` of the one answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from msgspec import structs

from gradus.engine.logprobs import NO_LOGPROBS, TokenLogprob
from gradus.engine.request import MAX_LOGPROBS, SamplingParams
from gradus.errors import RequestError
from gradus.server.api.errors import failure_of, openai, problem_of
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.frames import DONE, HOLE, Each, encode, event, event_around, event_pieces, pieces
from gradus.server.api.openai import (
    Stock,
    StreamOptions,
    floored,
    head,
    refuse_unsupported,
    sampling,
    scheduling,
    spelled,
    speller,
    stock,
    stream_options,
    usage,
    usage_of,
)
from gradus.server.exchange import Ask, Encoder, Served, Written
from gradus.server.limits import MAX_PROMPTS
from gradus.server.results import Stream, Template
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd, Prompt

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MOST_TOKENS = 2**31 - 1  # more than any context: max_tokens is reduced to the room in it


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared(Written):
    """A prompt that is changed before or after it is encoded.

    suffix: the text after the gap that the answer fills. special_tokens: begin with the beginning-of-sequence token, if
    the model has one. keep: drop tokens from the beginning until this many are left; -1: until max_tokens fit behind.
    """

    prompt: Prompt
    suffix: str | None = None
    special_tokens: bool = True
    keep: int | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.suffix or "")

    def tokens(self, front_end: FrontEnd, params: SamplingParams) -> Sequence[int]:
        tokens = self._encoded(front_end)
        if self.keep is None:
            return tokens
        room = front_end.limits.context_length - (params.max_tokens or 1)
        return tokens[-(max(room, 1) if self.keep == -1 else self.keep) :]

    def _encoded(self, front_end: FrontEnd) -> Sequence[int]:
        if self.suffix is not None:
            return front_end.infill.prompt(str(self.prompt), self.suffix, special_tokens=self.special_tokens)
        return front_end.tokens(self.prompt, special_tokens=self.special_tokens)

    def adapted(self, params: SamplingParams, front_end: FrontEnd) -> SamplingParams:
        """Stop at the end of the middle: not every model writes its end-of-sequence token there."""
        if self.suffix is None or params.ignore_eos:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, *front_end.infill.ends))


@dataclass(frozen=True, slots=True)
class Shape:
    """The optional contents of an answer.

    echo: begin each choice's text with its prompt. silent: leave out the generated token because max_tokens is 0; the
    engine generates at least one. keeps_stop: keep a stop string at the end of the text. token_ids: also return the
    token ids. by_id: name tokens by their ids in log-probabilities.
    logprobs, prompt_logprobs: the number of likeliest tokens to report; None: no log-probabilities.
    """

    stream: StreamOptions
    echo: bool = False
    silent: bool = False
    keeps_stop: bool = False
    token_ids: bool = False
    by_id: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def plain(self) -> bool:
        """Whether the chunks of a choice, except the first and the last, differ only in their texts."""
        return self.logprobs is None and not self.token_ids and not self.stream.continuous


@dataclass(frozen=True, slots=True)
class Completions:
    """A body of /v1/completions, checked as far as possible without encoding its prompts."""

    asks: tuple[Ask, ...]
    prompts: tuple[Prompt, ...]
    shape: Shape
    stream: bool
    ignored: tuple[str, ...]
    model: str
    front_end: FrontEnd

    def encoder(self, stream: Stream) -> Encoder:
        requests = [stream.requests[name] for name in stream.ids]
        return CompletionsEncoder(self, [request.prompt for request in requests])

    @classmethod
    def parse(cls, body: Any, served: Served) -> "Completions":
        """Check parsed JSON. Raises RequestError, or Unavailable while the model loads."""
        fields = Fields(body, strict=served.config.strict_fields)
        defaults = stock(served)
        refuse_unsupported(fields)
        prompts, suffix = _prompts(fields), fields.text("suffix") or None
        shape = _shape(fields)
        params = _params(fields, defaults, shape)
        samples, most = len(prompts) * params.n, served.config.max_waiting
        if len(prompts) > 1 and samples > most:
            refuse("prompt", f"at most {most} samples in all on this server (its max_waiting)", samples)
        if suffix is not None:
            _check_suffix(prompts, shape)
        if shape.echo and shape.logprobs is not None and not served.front_end.limits.prompt_logprobs:
            refuse("echo", "false with logprobs: this engine keeps no logits of a prompt's tokens", True)
        special, keep = fields.flag("add_special_tokens", True), _kept(fields)
        plain = suffix is None and special and keep is None
        order = scheduling(fields)
        asks = tuple(
            Ask(
                prompt if plain else Prepared(prompt, suffix, special, keep),
                params,
                order,
                cut=True,
                index=index if len(prompts) > 1 else None,
            )
            for index, prompt in enumerate(prompts)
        )
        stream = fields.flag("stream")
        return cls(asks, prompts, shape, stream, fields.ignored(), served.model, served.front_end)


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    """Read a text, a list of token ids, or a list of either."""
    limit = "a text, a list of token ids, or a list of texts or of lists of token ids"
    given = fields.get("prompt")
    match given:
        case str():
            return (given,)
        case [int(), *_]:
            return (given,)
        case [str() | list(), *_]:
            kind = type(given[0])
            for index, prompt in enumerate(given):
                if not isinstance(prompt, kind):
                    refuse(f"prompt[{index}]", f"a {'text' if kind is str else 'list'} like those before it", prompt)
            if len(given) > MAX_PROMPTS:
                refuse("prompt", f"at most {MAX_PROMPTS} prompts", len(given))
            return tuple(given)
    refuse("prompt", limit, given)


def _shape(fields: Fields) -> Shape:
    stream, asked = fields.flag("stream"), fields.whole("prompt_logprobs", 0, MAX_LOGPROBS)
    if stream and asked is not None:
        refuse("prompt_logprobs", "left out of a stream, where echo with logprobs reports them", asked)
    return Shape(
        stream=stream_options(fields),
        echo=fields.flag("echo"),
        silent=fields.get("max_tokens") == 0,
        keeps_stop=fields.flag("include_stop_str_in_output"),
        token_ids=fields.flag("return_token_ids"),
        by_id=fields.flag("return_tokens_as_token_ids"),
        logprobs=fields.whole("logprobs", 0, MAX_LOGPROBS),
        prompt_logprobs=asked,
    )


def _params(fields: Fields, defaults: Stock, shape: Shape) -> SamplingParams:
    most = fields.whole("max_tokens", 0 if shape.echo else 1, MOST_TOKENS, DEFAULT_MAX_TOKENS)
    asked = [shape.prompt_logprobs, shape.logprobs if shape.echo else None]
    prompt_logprobs = max((count for count in asked if count is not None), default=None)
    renamed = {"max_tokens": most or 1, "logprobs": shape.logprobs, "prompt_logprobs": prompt_logprobs}
    params, best_of = sampling(fields, defaults, **renamed), fields.get("best_of")
    if best_of not in (None, params.n):
        reason = "ask for n answers with logprobs, and choose"
        raise RequestError(f"best_of is not supported: {reason}", param="best_of", limit="left out", got="given")
    return params


def _check_suffix(prompts: Sequence[Prompt], shape: Shape) -> None:
    if not all(isinstance(prompt, str) for prompt in prompts):
        refuse("prompt", "text where a suffix follows", "token ids")
    if shape.echo:
        refuse("echo", "false with a suffix", True)


def _kept(fields: Fields) -> int | None:
    keep = fields.whole("truncate_prompt_tokens", -1, MOST_TOKENS)
    return refuse("truncate_prompt_tokens", "-1, or a whole number, 1 or more", keep) if keep == 0 else keep


# -- answers -----------------------------------------------------------------------------------------------------------


class CompletionsEncoder:
    """Writes answers of /v1/completions. prompts: each prompt's tokens."""

    def __init__(self, asked: Completions, prompts: Sequence[Sequence[int]]) -> None:
        self._shape, self._prompts, self._samples = asked.shape, prompts, asked.asks[0].params.n
        self._head = head("cmpl", "text_completion", asked.model)
        self._spell = _speller(asked)
        self._shown = [_shown(asked, index, tokens) for index, tokens in enumerate(prompts)]
        self._choices: dict[int, _Choice] = {}
        self._completions: list[Completion] = []
        self._generated = 0
        self._failed = False

    def begin(self) -> bytes:
        return b""

    def frames(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        """Write a chunk for each delta. A failed sample becomes an error, which clients raise and nothing follows."""
        for delta in deltas:
            if self._failed or not (delta.token_ids or delta.completion):
                continue
            if delta.completion is not None:
                if error := failure_of(delta.completion):
                    self._failed = True
                    yield event(openai(problem_of(error)))
                    continue
                self._completions.append(delta.completion)
            if not self._shape.silent:
                yield from self._frame(delta)
            elif delta.completion is not None:
                yield from self._frame(_silenced(delta))

    def _frame(self, delta: Delta) -> Iterable[bytes]:
        self._generated += len(delta.token_ids)
        choice = self._choice(delta)
        if self._shape.logprobs is not None:
            return event_pieces(self._chunk(choice.write(delta)))
        if delta.completion is not None:
            return (event(self._chunk(choice.write(delta))),)
        if choice.around is not None:
            before, after = choice.around
            return (before + encode(delta.text) + after,)
        frame = event(self._chunk(choice.write(delta)))
        if self._shape.plain:
            choice.around = event_around(self._chunk(choice.write(structs.replace(delta, text=HOLE))))
        return (frame,)

    def template(self, delta: Delta) -> Template | None:
        around = self._choice(delta).around
        return None if around is None else Template(around[0], text_alone, around[1])

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        if self._shape.stream.usage:
            chunk["usage"] = self._usage_so_far() if self._shape.stream.continuous else None
        return chunk

    def _usage_so_far(self) -> dict[str, Any]:
        return usage(sum(map(len, self._prompts)), self._generated)

    def end(self) -> Iterator[bytes]:
        if self._shape.stream.usage and not self._failed:
            yield event({**self._head, "choices": [], "usage": self._usage(self._completions)})
        yield DONE

    def failed(self, error: Exception) -> bytes:
        return event(openai(problem_of(error))) + DONE

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        choices = Each(self._whole_choice, completions)
        return pieces({**self._head, "choices": choices, "usage": self._usage(completions)})

    def _whole_choice(self, done: Completion) -> dict[str, Any]:
        """Write a choice as a single chunk, so that streams and whole answers cannot differ."""
        delta = _all_of(done)
        written = self._choice(delta).write(_silenced(delta) if self._shape.silent else delta)
        if self._shape.prompt_logprobs is not None:
            written["prompt_logprobs"] = Each(self._ranked, chain((None,), done.prompt_logprobs or ()))
        return written

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        if self._shape.silent:
            completions = [replace(completion, token_ids=()) for completion in completions]
        return usage_of(completions)

    def _choice(self, delta: Delta) -> "_Choice":
        place = delta.prompt_index * self._samples + delta.index
        if place not in self._choices:
            prompt, shown = self._prompts[delta.prompt_index], self._shown[delta.prompt_index]
            self._choices[place] = _Choice(place, self._shape, prompt, shown, self._spell)
        return self._choices[place]

    def _ranked(self, token: TokenLogprob | None) -> dict[str, Any] | None:
        """Write a prompt's token as in `prompt_logprobs`: this token and the likeliest ones by id, with their ranks.

        A token outside the likeliest ones has an unknown rank. None: the first token, which follows nothing.
        """
        if token is None:
            return None
        top = token.top[: self._shape.prompt_logprobs]
        ranks = {each: rank for rank, (each, _) in enumerate(top, start=1)}
        return {
            str(each): {"logprob": floored(value), "rank": ranks.get(each), "decoded_token": self._spell(each)}
            for each, value in {token.token_id: token.logprob, **dict(top)}.items()
        }


def text_alone(text: str, token: int) -> bytes:
    return encode(text)


def _speller(asked: Completions) -> "Spell":
    if asked.shape.by_id:
        return "token_id:{}".format
    spelling = speller(asked.front_end.tokenizer)
    return lambda token: spelled(spelling(token))


def _shown(asked: Completions, index: int, tokens: Sequence[int]) -> str:
    """Return the prompt as `echo` shows it: the given text, if all of it was used; "" without `echo`."""
    given, ask, tokenizer = asked.prompts[index], asked.asks[index], asked.front_end.tokenizer
    if not asked.shape.echo or tokenizer is None:
        return ""
    whole = not isinstance(ask.prompt, Prepared) or ask.prompt.keep is None
    return given if isinstance(given, str) and whole else tokenizer.decode(tokens)


def _all_of(done: Completion) -> Delta:
    logprobs: Any = done.logprobs or NO_LOGPROBS  # unpacked ones have the same interface
    prompt_logprobs: Any = done.prompt_logprobs or NO_LOGPROBS
    place = done.request_id, done.prompt_index, done.index
    return Delta(*place, done.text, done.token_ids, logprobs, done, prompt_logprobs)


def _silenced(delta: Delta) -> Delta:
    """Leave out the generated token, and how it ended the sample."""
    assert delta.completion is not None
    ended = replace(delta.completion, finish_reason="length", stop_reason=None)
    return structs.replace(delta, text="", token_ids=(), logprobs=NO_LOGPROBS, completion=ended)


class _Choice:
    """One choice of a growing answer. shown: the prompt's text, if it is echoed.

    around: a chunk's bytes before and after its text, if chunks differ in nothing else.
    """

    around: tuple[bytes, bytes] | None = None

    def __init__(self, place: int, shape: Shape, prompt: Sequence[int], shown: str, spell: "Spell") -> None:
        self._place, self._shape, self._prompt, self._shown = place, shape, prompt, shown
        self._logprobs = None if shape.logprobs is None else LegacyLogprobs(spell, shape.logprobs)
        self._begun = False

    def write(self, delta: Delta) -> dict[str, Any]:
        """Write the choice of a chunk. The first chunk begins with the prompt, if it is echoed."""
        first, done = not self._begun, delta.completion
        self._begun = True
        written = {
            "index": self._place,
            "text": (self._shown if first else "") + delta.text + self._kept_stop(done),
            "logprobs": self._reported(delta, first),
            "finish_reason": None if done is None else done.finish_reason,
            "stop_reason": None if done is None else done.stop_reason,
        }
        if self._shape.token_ids:
            written["token_ids"] = delta.token_ids
            written["prompt_token_ids"] = self._prompt if first else None
        return written

    def _kept_stop(self, done: Completion | None) -> str:
        kept = done is not None and self._shape.keeps_stop and isinstance(done.stop_reason, str)
        return done.stop_reason if kept else ""  # type: ignore[union-attr, return-value]

    def _reported(self, delta: Delta, first: bool) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        echoed = (self._prompt[0], *delta.prompt_logprobs) if first and self._shape.echo else ()
        return self._logprobs.write((*echoed, *delta.logprobs))


Spell = Callable[[int], str]
"""Spells a token in log-probabilities."""


class LegacyLogprobs:
    """Log-probabilities in this protocol's form, parallel lists. top: the number of likeliest tokens to report.

    Offsets count the characters of the tokens as spelled here, so they index the text that joins those spellings.
    """

    def __init__(self, spell: Spell, top: int) -> None:
        self._spell, self._top = spell, top
        self._offset = 0

    def write(self, tokens: Sequence[TokenLogprob | int]) -> dict[str, Any]:
        """Write the next tokens; a number is a prompt's first token, which follows nothing.

        Offsets are counted as the lists are encoded: encode each, in order.
        """
        return {
            "text_offset": Each(self._next_offset, tokens),
            "token_logprobs": Each(_value, tokens),
            "tokens": Each(self._text, tokens),
            "top_logprobs": Each(self._likeliest, tokens),
        }

    def _text(self, token: TokenLogprob | int) -> str:
        return self._spell(token if isinstance(token, int) else token.token_id)

    def _next_offset(self, token: TokenLogprob | int) -> int:
        offset = self._offset
        self._offset += len(self._text(token))
        return offset

    def _likeliest(self, token: TokenLogprob | int) -> dict[str, float] | None:
        if isinstance(token, int):
            return None
        likeliest: dict[str, float] = {}
        for each, logprob in (*token.top[: self._top], (token.token_id, token.logprob)):
            likeliest.setdefault(self._spell(each), floored(logprob))  # of tokens with the same text, the likeliest
        return likeliest


def _value(token: TokenLogprob | int) -> float | None:
    return None if isinstance(token, int) else floored(token.logprob)
