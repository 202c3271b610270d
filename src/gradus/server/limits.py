"""The limits of one body, whatever its protocol: its size, its log-probabilities, and a list of all for /stats."""

from collections.abc import Iterable, Sequence
from typing import Any

from gradus.engine import request as engine_limits
from gradus.engine.request import MAX_LOGPROBS, Request
from gradus.errors import RequestError
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.server.exchange import Ask

BYTES_PER_TOKEN = 16
"""More than a token's average size in a body: as text, escaped or not, or as a number and a comma."""
LEAST_LIMIT = 1 << 20
BESIDE_PROMPT = 1 << 18  # schemas, tools, and the other fields
LEAST_LOGPROBS = 1 << 21
MAX_PROMPTS = 128
MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 32_768  # arrays and objects
MAX_JSON_STRINGS = 65_536  # keys among them
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024


def body_limit(config: ServerConfig, info: ModelInfo | None) -> int:
    """Return the most bytes of a body: as configured, or enough for the whole context. info: None while loading."""
    if config.max_body_bytes is not None:
        return config.max_body_bytes
    context = 0 if info is None else info.limits.context_length
    return max(LEAST_LIMIT, BYTES_PER_TOKEN * context + BESIDE_PROMPT)


def logprobs_limit(config: ServerConfig, info: ModelInfo | None) -> int:
    """Return the most log-probabilities of an answer: as configured, or enough for all that one sample can have.

    info: None while the model loads.
    """
    if config.max_answer_logprobs is not None:
        return config.max_answer_logprobs
    context = 0 if info is None else info.limits.context_length
    return max(LEAST_LOGPROBS, (1 + MAX_LOGPROBS) * context)


def check_logprobs(asks: Sequence[Ask], context: int, most: int) -> None:
    """Check the product of numbers that are each within their limits. It bounds the answer's size: a token's text has
    a few bytes, but its log-probabilities have 60 bytes each.

    context: tokens of the model's context. Raises RequestError.
    """
    count = sum(ask.params.n * _logprobs(ask, context) for ask in asks)
    if count > most:
        raise RequestError(
            f"logprobs × tokens × n must be at most {most} in one body, got up to {count}: lower n, max_tokens, "
            "logprobs or the number of prompts",
            param="logprobs",
            limit=f"at most {most} log-probabilities in one body",
            got=count,
        )


def _logprobs(ask: Ask, context: int) -> int:
    """Count the log-probabilities of generated tokens that a sample may have. Those of prompts have their own limit."""
    if ask.params.logprobs is None:
        return 0
    return (1 + ask.params.logprobs) * min(ask.params.max_tokens or context, context)


def check_prompt_logprobs(requests: Iterable[Request], most: int) -> None:
    """Raises RequestError if one body asks for more log-probabilities of its prompts than the server can write
    quickly."""
    asking = [request for request in requests if request.params.prompt_logprobs is not None]
    wanted = sum([one.params.n * len(one.prompt) * (1 + (one.params.prompt_logprobs or 0)) for one in asking])
    if wanted > most:
        limit = f"at most {most} log-probabilities (this server's max_prompt_logprobs)"
        raise RequestError(
            f"prompt_logprobs: {limit}, got {wanted}: the prompt's tokens times (1 + prompt_logprobs), per sample",
            param="prompt_logprobs",
            limit=limit,
            got=wanted,
        )


def limits(config: ServerConfig, info: ModelInfo | None) -> dict[str, Any]:
    """List every limit that a request can exceed, for /stats. info: describes the served model; None while it loads."""
    names = ("max_waiting", "max_prompt_logprobs", "max_buffered", "request_timeout", "step_timeout", "drain_timeout")
    keys = ("key_max_samples", "key_max_waiting", "key_tokens_per_minute")
    return {name: getattr(config, name) for name in (*names, "receive_timeout", "write_timeout", *keys)} | {
        "max_body_bytes": body_limit(config, info),
        "max_answer_logprobs": logprobs_limit(config, info),
        "max_n": min(engine_limits.MAX_N, config.max_waiting),
        "max_prompts": MAX_PROMPTS,
        "max_logprobs": engine_limits.MAX_LOGPROBS,
        "max_stop_strings": engine_limits.MAX_STOP_STRINGS,
        "max_stop_characters": engine_limits.MAX_STOP_CHARACTERS,
        "max_stop_tokens": engine_limits.MAX_STOP_TOKENS,
        "max_logit_bias": engine_limits.MAX_LOGIT_BIAS,
        "max_priority": engine_limits.MAX_PRIORITY,
        "max_salt_characters": engine_limits.MAX_SALT_CHARACTERS,
        "max_json_depth": MAX_JSON_DEPTH,
        "max_json_containers": MAX_JSON_CONTAINERS,
        "max_json_strings": MAX_JSON_STRINGS,
        "max_header_bytes": MAX_HEADER_BYTES,
        "max_headers": MAX_HEADERS,
    }
