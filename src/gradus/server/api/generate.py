"""/generate: our own protocol, with the engine's own fields. Answers and frames carry token ids and timings.

A request has the fields of SamplingParams and SchedulingParams, which check them, and two of the server's.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gradus.config.description import did_you_mean
from gradus.engine.logprobs import TokenLogprob
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.engine.sequence import Timings
from gradus.errors import RequestError
from gradus.server.api.errors import failure_of, own, problem_of
from gradus.server.api.fields import refuse
from gradus.server.api.frames import DONE, Each, encode, event, event_pieces, pieces
from gradus.server.config import ServerConfig
from gradus.server.exchange import Ask, Encoder
from gradus.server.measures import Tally
from gradus.server.results import Stream, Template
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import Prompt

SAMPLING_FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
SCHEDULING_FIELDS = tuple(field.name for field in dataclasses.fields(SchedulingParams))
FIELDS = ("prompt", *SAMPLING_FIELDS, *SCHEDULING_FIELDS, "stream")


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Generate:
    """A body of /generate, checked as far as possible without the model."""

    ask: Ask
    stream: bool
    model: str
    ignored: tuple[str, ...] = ()

    @property
    def asks(self) -> Sequence[Ask]:
        return (self.ask,)

    def encoder(self, stream: Stream) -> Encoder:
        return GenerateEncoder(self.model, self.ask.params, stream.tally)

    @classmethod
    def parse(cls, body: Any, config: ServerConfig, model: str = "") -> "Generate":
        """Check parsed JSON. Raises RequestError naming the field, its limit and the value given."""
        if not isinstance(body, dict):
            refuse("body", "a JSON object", body)
        for name in body:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS)
                raise RequestError(f"unknown field {name[:60]!r}{hint}", param=name[:60], limit="a known field")
        body = {name: value for name, value in body.items() if value is not None}  # null means the default
        for name, value in body.items():
            if None in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
                raise RequestError(f"{name} must hold no null", param=name, limit="no null in it", got="null")
        _check_timeout(body.get("timeout"), config.request_timeout)
        stream = _flag(body, "stream")
        ask = Ask(
            prompt=_prompt(body),
            params=SamplingParams(**{name: body[name] for name in SAMPLING_FIELDS if name in body}),
            scheduling=SchedulingParams(**{name: body[name] for name in SCHEDULING_FIELDS if name in body}),
            apart=stream,  # each frame says how its sample ended
        )
        return cls(ask, stream, model)


def _prompt(body: Mapping[str, Any]) -> Prompt:
    if "prompt" not in body:
        raise RequestError("prompt is missing", param="prompt", limit="text or a list of token ids")
    if not isinstance(body["prompt"], str | list):
        refuse("prompt", "text or a list of token ids", body["prompt"])
    return body["prompt"]


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        refuse(name, "true or false", value)
    return value


def _check_timeout(value: Any, most: float) -> None:
    """Check the timeout against this server's limit; the engine itself would accept a longer one."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        refuse("timeout", f"a number of seconds above 0 and at most {most:g} (this server's limit)", value)


# -- answers -----------------------------------------------------------------------------------------------------------


class GenerateEncoder:
    """Writes answers of /generate."""

    def __init__(self, model: str, params: SamplingParams, tally: Tally) -> None:
        self._model = model
        self._params = params
        self._tally = tally
        self._plain = params.logprobs is None
        self._completions: list[Completion] = []

    def begin(self) -> bytes:
        return b""

    def frames(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        """Write a frame for each delta. The very last frame carries the model and the usage."""
        for delta in deltas:
            if delta.prompt_logprobs:
                yield from event_pieces(self._frame(delta))
            elif delta.token_ids and delta.completion is None and self._plain:
                yield plain_event(delta)
            elif delta.token_ids or delta.completion:
                yield from event_pieces(self._frame(delta))

    def template(self, delta: Delta) -> Template | None:
        if not self._plain:
            return None
        before = f'data: {{"id":"{delta.request_id}","index":{delta.index},"text":'
        return Template(before.encode(), text_and_id, b"]}\n\n")

    def _frame(self, delta: Delta) -> dict[str, Any]:
        content = frame(delta, wants_logprobs=self._params.logprobs is not None)
        if delta.completion is not None:
            self._completions.append(delta.completion)
            if len(self._completions) == self._params.n:
                content |= {"model": self._model, "usage": usage(self._completions, self._tally)}
        return content

    def end(self) -> Iterator[bytes]:
        yield DONE

    def failed(self, error: Exception) -> bytes:
        return event(own(problem_of(error))) + DONE

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        return pieces(answer(completions, self._model, self._tally))


def answer(completions: Sequence[Completion], model: str, tally: Tally) -> dict[str, Any]:
    """Format the whole answer. Its top level is sample 0; with n > 1, `choices` lists all samples, sample 0 too."""
    first = completions[0]
    choices = {"choices": Each(_choice, completions)} if len(completions) > 1 else {}
    counts = usage(completions, tally)
    return {"id": first.request_id, "model": model, **_choice(first), **choices, "usage": counts}


def _choice(completion: Completion) -> dict[str, Any]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        **_logprobs(completion.logprobs),
        **_prompt_logprobs(completion.prompt_logprobs),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "timings": _timings(completion.timings),
    }


def usage(completions: Sequence[Completion], tally: Tally) -> dict[str, int | float]:
    """Count tokens. The prompt counts once, whatever n is; cached_tokens: prompt tokens that no sample computed.

    device_seconds: all samples' share of the device.
    """
    prompt, generated = completions[0].prompt_tokens, sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "cached_tokens": min(completion.cached_tokens for completion in completions),
        "device_seconds": round(tally.device_s, 6),
    }


def frame(delta: Delta, wants_logprobs: bool) -> dict[str, Any]:
    """Format one frame of a stream: one sample's new part. The sample's last frame also says how it ended."""
    content = {
        "id": delta.request_id,
        "index": delta.index,
        "text": delta.text,
        "token_ids": delta.token_ids,
        **(_logprobs(delta.logprobs) if wants_logprobs else {}),
        **_prompt_logprobs(delta.prompt_logprobs or None),
    }
    if delta.completion is not None:
        content["finish_reason"] = delta.completion.finish_reason
        content["stop_reason"] = delta.completion.stop_reason
        content["timings"] = _timings(delta.completion.timings)
        if error := failure_of(delta.completion):
            content |= own(problem_of(error))
    return content


def text_and_id(text: str, token: int) -> bytes:
    return encode(text) + b',"token_ids":[%d' % token


def plain_event(delta: Delta) -> bytes:
    """Write `event(frame(delta))` for a delta of only text and tokens, ten times as fast: on a busy server nearly all
    deltas are of this kind."""
    ids = delta.token_ids
    tokens = str(ids[0]) if len(ids) == 1 else ",".join(map(str, ids))
    before = f'data: {{"id":"{delta.request_id}","index":{delta.index},"text":'
    return before.encode() + encode(delta.text) + f',"token_ids":[{tokens}]}}\n\n'.encode()


def _timings(timings: Timings) -> dict[str, float | None]:
    """Format timings: seconds since the engine received the request, and tokens per second after the first one."""
    return {
        "queued_s": _rounded(timings.queued_s),
        "ttft_s": _rounded(timings.ttft_s),
        "total_s": _rounded(timings.total_s),
        "decode_tokens_per_s": _rounded(timings.decode_tokens_per_s),
    }


def _logprobs(logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any]:
    if logprobs is None:
        return {}
    return {"logprobs": Each(_logprob, logprobs)}


def _logprob(token: TokenLogprob | None) -> dict[str, Any] | None:
    if token is None:
        return None
    return {
        "token_id": token.token_id,
        "logprob": _finite(token.logprob),
        "top": [{"token_id": token_id, "logprob": _finite(value)} for token_id, value in token.top],
    }


def _prompt_logprobs(logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any]:
    """Format the prompt's log-probabilities; its first token has no predecessor, and gets null."""
    return {} if logprobs is None else {"prompt_logprobs": Each(_logprob, chain((None,), logprobs))}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _finite(value: float) -> float | None:
    """Replace infinity, the log-probability of an impossible token, by null: JSON has no infinities."""
    return value if math.isfinite(value) else None
