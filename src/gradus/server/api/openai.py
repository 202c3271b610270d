"""The parts that OpenAI's protocols share: sampling, constraints, stream options, usage, spelling of log-probabilities.

A protocol's reader calls `sampling`, `scheduling` and `stream_options`, which read their own fields, and
`refuse_unsupported` for fields of similar servers that Gradus does not support.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradus.engine.request import MAX_SEED, SamplingParams, SchedulingParams
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.server.api.closing import closed
from gradus.server.api.fields import Fields, refuse
from gradus.server.engine.messages import ModelInfo
from gradus.server.exchange import Served
from gradus.text.completion import Completion

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

LEAST_LOGPROB = -9999.0  # what OpenAI writes for an impossible token; JSON has no infinities

Stock = Mapping[str, float]
"""Values of sampling fields that a request leaves out, by name."""

STOCK: Stock = {"temperature": 1.0}
"""OpenAI's own. Its other defaults are the engine's."""


def stock(served: Served) -> Stock:
    """Return the served model's defaults, or else OpenAI's. Raises Unavailable while the model loads."""
    _ = served.front_end
    return STOCK if served.info is None else in_force(served.info)[0]


def in_force(info: ModelInfo) -> tuple[dict[str, float], dict[str, str]]:
    """Return the values of sampling fields that a request leaves out, and where each comes from."""
    sources = dict.fromkeys(STOCK, "the protocol") | info.sampling_sources
    return {**STOCK, **info.default_sampling}, sources


# -- sampling ----------------------------------------------------------------------------------------------------------

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "n",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
)
SCHEDULING = ("priority", "cache_salt", "deadline", "timeout")

NO_EFFECT = (
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "request_id",
)
"""Fields that most clients send and that cannot change an answer here; `model` is checked before (models.py)."""


def sampling(fields: Fields, stock: Stock, **renamed: Any) -> SamplingParams:
    """Read how to choose tokens and when to stop.

    stock: the defaults. renamed: parameters whose fields differ between protocols (max_tokens, logprobs).
    Raises RequestError naming the field.
    """
    structured = constraint(fields)
    given = {**stock, **fields.some(*SAMPLING)}
    return SamplingParams(**given, seed=_seed(fields), structured=structured, **renamed)


def scheduling(fields: Fields) -> SchedulingParams:
    """Read order, time limits and cache sharing: not OpenAI's fields, but common among servers."""
    fields.some(*NO_EFFECT)
    return SchedulingParams(**fields.some(*SCHEDULING))


def _seed(fields: Fields) -> int | None:
    """Read a signed 64-bit seed; -1 means none, as in other servers."""
    seed = fields.whole("seed", -(MAX_SEED + 1), MAX_SEED)
    return None if seed is None or seed == -1 else seed & MAX_SEED


# -- constraints -------------------------------------------------------------------------------------------------------

ANY_OBJECT = '{"type":"object"}'
KINDS = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}
"""The kinds of structured_outputs, by the names of `Structured`."""

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
"""Older names of structured_outputs, each a field of its own, which clients written for vLLM still send."""

NOT_CONSTRAINTS = {
    "structural_tag": "constrain the whole answer by a grammar, or use the tools of a chat",
    "whitespace_pattern": "disable_any_whitespace leaves white space out; otherwise it is bounded",
}


def constraint(fields: Fields) -> Structured | None:
    """Read `response_format` and `structured_outputs`, or its older names; at most one may constrain the answer.

    Clients that don't know the server's age send an older name and structured_outputs, with the same value.
    """
    fields.some("guided_decoding_backend")  # there is one
    guided = {name: value for name, value in fields.some(*GUIDED).items() if value is not False}
    by_format = _response_format(fields.object("response_format"))
    by_outputs = _outputs(fields.object("structured_outputs"))
    by_name = _outputs({GUIDED[name]: value for name, value in guided.items()})
    if by_name is not None and (by_format is not None or by_outputs not in (None, by_name)):
        refuse(next(iter(guided)), "left out with another constraint of the answer", by_name.kind)
    if by_format is not None and by_outputs is not None:
        refuse("structured_outputs", "left out with a response_format that constrains the answer", by_outputs.kind)
    return by_format or by_outputs or by_name


def _response_format(given: Mapping[str, Any]) -> Structured | None:
    match given.get("type"):
        case None if not given:
            return None
        case "text":
            return None
        case "json_object":
            return Structured(json_schema=ANY_OBJECT)
        case "json_schema":
            return _schema(given.get("json_schema"))
    refuse("response_format.type", '"text", "json_object" or "json_schema"', given.get("type"))


def _schema(given: Any) -> Structured:
    """Read {name, schema, strict, description}. The answer obeys the schema even if `strict` is false."""
    if not isinstance(given, Mapping) or given.get("schema") is None:
        refuse("response_format.json_schema", "an object with a schema", given)
    return Structured(json_schema=given["schema"])


def _outputs(given: Mapping[str, Any]) -> Structured | None:
    given = {name: value for name, value in given.items() if value is not False}
    if not given:
        return None
    compact = given.pop("disable_any_whitespace", False)
    given.pop("disable_additional_properties", None)  # they are, see `closed`
    for name in given:
        if name in NOT_CONSTRAINTS:
            what = f"structured_outputs.{name}"
            raise RequestError(f"{what} is not supported: {NOT_CONSTRAINTS[name]}", param=what, limit="left out")
        if name not in KINDS:
            refuse("structured_outputs", f"an object with one of {', '.join(KINDS)}", name)
    if len(given) != 1:
        refuse("structured_outputs", f"an object with exactly one of {', '.join(KINDS)}", ", ".join(given) or "none")
    (name, value), whitespace = next(iter(given.items())), "compact" if compact else "bounded"
    if name == "json_object":
        return Structured(json_schema=ANY_OBJECT, whitespace=whitespace)
    if name == "json":
        value = closed(value)
    return Structured(**{KINDS[name]: value}, whitespace=whitespace)


# -- unsupported fields ------------------------------------------------------------------------------------------------

_CONSTRAIN = "use structured_outputs.{} instead"
UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "guided_whitespace_pattern": ((), _CONSTRAIN.format("disable_any_whitespace")),
    "structural_tag": ((), _CONSTRAIN.format("grammar")),
    "use_beam_search": ((False,), "sample n answers instead"),
    "length_penalty": ((1.0,), "it belongs to beam search; sample n answers instead"),
    "early_stopping": ((False,), "it belongs to beam search; sample n answers instead"),
    "allowed_token_ids": ((), "use structured_outputs.choice or logit_bias instead"),
    "bad_words": (([],), "use logit_bias, or structured_outputs.regex, instead"),
    "logits_processors": (([],), "use logit_bias or structured_outputs instead"),
    "logprob_token_ids": (([],), "use logprobs, which reports the likeliest tokens"),
    "repetition_detection": ((), "use repetition_penalty, or stop"),
    "skip_special_tokens": ((True,), "use return_token_ids to see control tokens"),
    "prompt_embeds": ((), "send text or token ids"),
    "kv_transfer_params": ((), "leave it out; keys and values stay in this server"),
    "vllm_xargs": (({},), "leave it out"),
}
"""Unsupported fields: the values that would not change the answer, and what to use instead."""


def refuse_unsupported(fields: Fields) -> None:
    """Refuse unsupported fields that would change the answer."""
    for name, (harmless, _) in UNSUPPORTED.items():
        if name in fields and fields.get(name) in harmless:
            continue
        fields.refuse({name: UNSUPPORTED[name][1]})


# -- streams and usage -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """usage: the last chunk has no choices and counts the tokens. continuous: so does every chunk before it."""

    usage: bool = False
    continuous: bool = False


def stream_options(fields: Fields) -> StreamOptions:
    """Read `stream_options`, which do not apply to an answer in one piece."""
    options = fields.object("stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name, False), bool):
            refuse(f"stream_options.{name}", "true or false", options[name])
    usage = options.get("include_usage", False)
    return StreamOptions(usage, usage and options.get("continuous_usage_stats", False))


def usage(prompt: int, generated: int, *, cached: int | None = None, reasoning: int = 0) -> dict[str, Any]:
    """Write counts of tokens. cached: prompt tokens that were not computed; None while unknown."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def usage_of(completions: Sequence[Completion], reasoning: int = 0) -> dict[str, Any]:
    """Count the tokens of a whole answer. A prompt counts once, whatever n is; cached: no sample computed them."""
    prompts = {completion.prompt_index: completion.prompt_tokens for completion in completions}
    cached = {
        index: min(completion.cached_tokens for completion in completions if completion.prompt_index == index)
        for index in prompts
    }
    generated = sum(len(completion.token_ids) for completion in completions)
    return usage(sum(prompts.values()), generated, cached=sum(cached.values()), reasoning=reasoning)


# -- answers -----------------------------------------------------------------------------------------------------------


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """Return the fields that every chunk of an answer repeats. prefix: begins the server-made id; kind: `object`."""
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def floored(logprob: float) -> float:
    """Replace the logarithm of 0, which JSON cannot write, as OpenAI does. NaN cannot occur: the engine refuses it."""
    return max(logprob, LEAST_LOGPROB)


def speller(tokenizer: "Tokenizer | None") -> Callable[[int], bytes]:
    """Return a function that gives a token's bytes for log-probabilities; a control token's are its name."""
    if tokenizer is None:
        return lambda token: b"token_id:%d" % token
    return tokenizer.spelling


def spelled(piece: bytes) -> str:
    """Write a token's bytes as text; incomplete characters as OpenAI does, `bytes:\\xe2\\x80`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
