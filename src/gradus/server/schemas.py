"""The wire format of /generate: requests, answers and errors.

A request has the fields of SamplingParams and SchedulingParams, which check them, and two of the server's own.
The OpenAPI schema is generated from the same dataclasses, with the descriptions of their fields, so the two cannot
drift apart.
"""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.config.description import did_you_mean
from gradus.engine import request as engine_limits
from gradus.engine.logprobs import TokenLogprob
from gradus.engine.meaning import meanings
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.engine.sequence import Timings
from gradus.engine.structured import Structured
from gradus.errors import CapacityError, RequestError
from gradus.server.body import BodyError
from gradus.server.config import MAX_HEADER_BYTES, MAX_HEADERS, MAX_JSON_DEPTH, ServerConfig
from gradus.server.results import DeadlineMissed, RequestFailed, RequestTimeout, Unavailable
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import Prompt

SAMPLING_FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
SCHEDULING_FIELDS = tuple(field.name for field in dataclasses.fields(SchedulingParams))
FIELDS = ("prompt", *SAMPLING_FIELDS, *SCHEDULING_FIELDS, "stream")


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A body of /generate, checked as far as possible without the model."""

    prompt: Prompt
    params: SamplingParams
    scheduling: SchedulingParams
    stream: bool

    @classmethod
    def parse(cls, body: Any, config: ServerConfig) -> "GenerateRequest":
        """Check parsed JSON. Raises RequestError naming the field, its limit and the value given."""
        if not isinstance(body, dict):
            raise _refuse("body", "a JSON object", body)
        for name in body:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS)
                raise RequestError(f"unknown field {name[:60]!r}{hint}", param=name[:60], limit="a known field")
        body = {name: value for name, value in body.items() if value is not None}  # null means the default
        for name, value in body.items():
            if None in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
                raise RequestError(f"{name} must hold no null", param=name, limit="no null in it", got="null")
        _check_timeout(body.get("timeout"), config.request_timeout)
        return cls(
            prompt=_prompt(body),
            params=SamplingParams(**{name: body[name] for name in SAMPLING_FIELDS if name in body}),
            scheduling=SchedulingParams(**{name: body[name] for name in SCHEDULING_FIELDS if name in body}),
            stream=_flag(body, "stream"),
        )


def _prompt(body: Mapping[str, Any]) -> Prompt:
    if "prompt" not in body:
        raise RequestError("prompt is missing", param="prompt", limit="text or a list of token ids")
    if not isinstance(body["prompt"], str | list):
        raise _refuse("prompt", "text or a list of token ids", body["prompt"])
    return body["prompt"]


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return value


def _check_timeout(value: Any, most: float) -> None:
    """Check the timeout against this server's limit; the engine itself would accept a longer one."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise _refuse("timeout", f"a number of seconds above 0 and at most {most:g} (this server's limit)", value)


def _refuse(param: str, limit: str, got: Any) -> RequestError:
    shown = repr(got)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    return RequestError(f"{param} must be {limit}, got {shown}", param=param, limit=limit, got=shown)


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(completions: Sequence[Completion], model: str) -> dict[str, Any]:
    """Format the whole answer. Its top level is sample 0; with n > 1, `choices` lists all samples, including 0."""
    first = completions[0]
    choices = {"choices": [_choice(completion) for completion in completions]} if len(completions) > 1 else {}
    return {"id": first.request_id, "model": model, **_choice(first), **choices, "usage": usage(completions)}


def _choice(completion: Completion) -> dict[str, Any]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        **_logprobs(completion.logprobs),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "timings": _timings(completion.timings),
    }


def usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Count tokens. The prompt counts once, whatever n; cached_tokens: its tokens that no sample had to compute."""
    prompt, generated = completions[0].prompt_tokens, sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "cached_tokens": min(completion.cached_tokens for completion in completions),
    }


def frame(delta: Delta, wants_logprobs: bool) -> dict[str, Any]:
    """Format one frame of a stream: one sample's new part. The sample's last frame also says how it ended."""
    content = {
        "id": delta.request_id,
        "index": delta.index,
        "text": delta.text,
        "token_ids": delta.token_ids,
        **(_logprobs(delta.logprobs) if wants_logprobs else {}),
    }
    if delta.completion is not None:
        content["finish_reason"] = delta.completion.finish_reason
        content["stop_reason"] = delta.completion.stop_reason
        content["timings"] = _timings(delta.completion.timings)
        if error := failure_of(delta.completion):
            content |= error_of(error)[1]
    return content


def failure_of(completion: Completion) -> Exception | None:
    """The error behind a finish_reason; None if the sample ended as requested."""
    match completion.finish_reason:
        case "error":
            return RequestFailed()
        case "timeout":
            return RequestTimeout("the request did not end within its timeout")
        case "deadline":
            return DeadlineMissed("the request could not end by its deadline")
        case "cancelled":
            return Unavailable("the server is shutting down", "draining")
    return None


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
    return {
        "logprobs": [
            {
                "token_id": token.token_id,
                "logprob": _finite(token.logprob),
                "top": [{"token_id": token_id, "logprob": _finite(value)} for token_id, value in token.top],
            }
            for token in logprobs
        ]
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _finite(value: float) -> float | None:
    """Replace infinity by null, since JSON has no infinities: the log-probability of an impossible token."""
    return value if math.isfinite(value) else None


LINE_ENDS = ("\u0085", "\u2028", "\u2029")
"""JSON does not escape these. They end no line of a stream, but a client that splits lines like Python would split
here."""


def encode(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for end in LINE_ENDS:  # only strings can hold one
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text.encode()


# -- errors ------------------------------------------------------------------------------------------------------------


def error_of(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Turn an exception into (HTTP status, body, headers). A bug of ours gets a generic text."""
    match error:
        case BodyError():
            # if the rest of the body was not read, the connection cannot be reused
            headers = {} if error.status == 400 else {"connection": "close"}
            return error.status, _error(error, error.status, "invalid_request"), headers
        case RequestError():
            return 400, _error(error, 400, "invalid_request"), {}
        case Unavailable():
            after = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            return 503, _error(error, 503, error.kind), after
        case CapacityError():
            return 503, _error(error, 503, "overloaded"), {"retry-after": "1"}
        case RequestTimeout():
            return 504, _error(error, 504, "timeout"), {}
        case DeadlineMissed():
            return 504, _error(error, 504, "deadline"), {}
        case RequestFailed():
            return 500, _error(error, 500, "internal_error"), {}
    return 500, _error("internal error; the server's log says why", 500, "internal_error"), {"connection": "close"}


def http_error(status: int, message: str) -> dict[str, Any]:
    """The body of an error of HTTP itself (404, 405, 431)."""
    return _error(message, status, "invalid_request")


def _error(error: Exception | str, status: int, kind: str) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "param": getattr(error, "param", None),
            "limit": getattr(error, "limit", None) or None,
            "got": getattr(error, "got", None),
            "code": status,
        }
    }


# -- limits and the OpenAPI schema -------------------------------------------------------------------------------------


def limits(config: ServerConfig) -> dict[str, Any]:
    """Every limit that a request can exceed, for /stats."""
    names = ("max_waiting", "max_body_bytes", "max_buffered", "request_timeout", "step_timeout", "drain_timeout")
    return {name: getattr(config, name) for name in (*names, "receive_timeout", "write_timeout")} | {
        "max_n": min(engine_limits.MAX_N, config.max_waiting),
        "max_logprobs": engine_limits.MAX_LOGPROBS,
        "max_stop_strings": engine_limits.MAX_STOP_STRINGS,
        "max_stop_characters": engine_limits.MAX_STOP_CHARACTERS,
        "max_stop_tokens": engine_limits.MAX_STOP_TOKENS,
        "max_logit_bias": engine_limits.MAX_LOGIT_BIAS,
        "max_priority": engine_limits.MAX_PRIORITY,
        "max_salt_characters": engine_limits.MAX_SALT_CHARACTERS,
        "max_json_depth": MAX_JSON_DEPTH,
        "max_header_bytes": MAX_HEADER_BYTES,
        "max_headers": MAX_HEADERS,
    }


def openapi_of_generate(config: ServerConfig) -> dict[str, Any]:
    """Derive the schema from the engine's own dataclasses, as FastAPI would from a pydantic model."""
    schema: dict[str, Any] = {
        "type": "object",
        "required": ["prompt"],
        "additionalProperties": False,
        "properties": {
            "prompt": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}],
                "description": "text, or token ids",
            },
            **_sampling_properties(),
            **_scheduling_properties(config),
            "stream": {"type": "boolean", "default": False, "description": "answer with server-sent events"},
        },
    }
    for name, field in schema["properties"].items():
        if name != "prompt":
            _allow_null(field)
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "the completion; with `stream`, events whose data are its pieces, then [DONE]",
                "content": {"application/json": {}, "text/event-stream": {}},
            },
            **{status: {"description": meaning} for status, meaning in ERRORS.items()},
        },
    }


ERRORS = {
    "400": "the request can never be served as it stands; `error` names the field, its limit and what was given",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "415": "the body is not plain application/json in UTF-8",
    "431": "the headers are too large",
    "500": "this one request failed in the engine",
    "503": "loading, overloaded, draining or failed; Retry-After says when to come back, where that is known",
    "504": "the request did not end within its timeout, or could not end by its deadline",
}


def _allow_null(schema: dict[str, Any]) -> None:
    """Let the schema of a field accept null, which means the field's default."""
    kinds = schema.setdefault("anyOf", [])
    if not kinds:
        kinds.append({key: schema.pop(key) for key in TYPED if key in schema})
    if {"type": "null"} not in kinds:
        kinds.append({"type": "null"})


TYPED = ("type", "items", "additionalProperties")


def _sampling_properties() -> dict[str, Any]:
    properties = _properties(SamplingParams)
    properties["structured"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": _properties(Structured) | {"json_schema": {"description": meanings(Structured)["json_schema"]}},
        **{key: properties["structured"][key] for key in ("default", "description")},
    }
    # one stop string may come without its list
    properties["stop"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]} | {
        key: properties["stop"][key] for key in ("default", "description")
    }
    return properties


def _scheduling_properties(config: ServerConfig) -> dict[str, Any]:
    properties = _properties(SchedulingParams)
    properties["timeout"] |= {"exclusiveMinimum": 0, "maximum": config.request_timeout}
    properties["timeout"]["description"] += f" Here null is {config.request_timeout:g} s."
    return properties


def _properties(params: type[SamplingParams | SchedulingParams | Structured]) -> dict[str, Any]:
    kinds, descriptions = typing.get_type_hints(params), meanings(params)
    properties = {}
    for field in dataclasses.fields(params):
        default = field.default if field.default is not dataclasses.MISSING else {}
        properties[field.name] = {
            **_json_type(kinds[field.name]),
            "default": list(default) if isinstance(default, tuple) else default,
            "description": re.sub(r"\bNone\b", "null", descriptions[field.name]),
        }
    return properties


JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def _json_type(kind: Any) -> dict[str, Any]:
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return {"anyOf": [_json_type(one) for one in arguments]}
    match typing.get_origin(kind) or kind:
        case origin if origin is Sequence:
            return {"type": "array", "items": _json_type(arguments[0])}
        case origin if origin is Mapping:  # JSON has no integer keys
            return {"type": "object", "additionalProperties": _json_type(arguments[1])}
        case simple:
            return {"type": JSON_TYPES[simple]} if simple in JSON_TYPES else {}
