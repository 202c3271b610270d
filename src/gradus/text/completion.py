"""Results for callers: deltas while a request runs, a completion for each sample when it ends. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs, TokenLogprob
from gradus.engine.sequence import Timings


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sample.

    prompt_index: the prompt's index among those given together; index: the sample's index among the prompt's n samples.
    token_ids: everything generated, including the token that ended it: a stop token, or the one that completed a stop
        string.
    text: those tokens as text, without stop string and control tokens.
    cached_tokens: prompt tokens that were not computed, because the prefix cache had them.
    prompt_logprobs: of the prompt's tokens after the first; None if the request did not ask.
    finish_reason: "stop" (stop_reason: the token id or the string), "length", "cancelled", "timeout", "deadline" (it
        could not end in time), or "error".
    """

    request_id: str
    prompt_index: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Sequence[TokenLogprob] | None
    finish_reason: str
    stop_reason: int | str | None
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    error: str | None = None
    prompt_logprobs: Sequence[TokenLogprob] | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):  # quick to make: a busy server makes hundreds per step
    """One sample's progress since its last delta. `text` is whole characters; it may lag behind `token_ids`.

    prompt_logprobs: with a sample's first delta, if the request asks for them.
    """

    request_id: str
    prompt_index: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Logprobs
    completion: Completion | None = None
    prompt_logprobs: Logprobs = NO_LOGPROBS
