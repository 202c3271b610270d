"""The attributes of a request's span, by OpenTelemetry's conventions for generative AI, and by vLLM's.

The conventions (github.com/open-telemetry/semantic-conventions-genai) are in development, so their version is part of
every span's scope. They have no span for a server of models: this one has the names of the client's span, and the kind
SERVER. What they have no name for begins with `gradus.`. vLLM's own names (vllm/tracing/utils.py, release 0.33) are
added with `--metrics-alias vllm`, the default.
"""

from collections.abc import Iterable
from typing import Any

from gradus.engine.request import Request
from gradus.engine.sequence import Timings
from gradus.server.measures import Tally

CONVENTIONS = "semantic-conventions-genai v0.1.0"
PROVIDER = "gradus"
OPERATIONS = {
    "/generate": "text_completion",
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
"""The operation of each route that is traced."""


def of_request(request: Request) -> dict[str, Any]:
    """The sampling in force. With several prompts in a body, it is the same for all."""
    params = request.params
    found = {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": float(params.temperature),
        "gen_ai.request.top_p": float(params.top_p),
        "gen_ai.request.top_k": float(params.top_k) if params.top_k > 0 else None,
        "gen_ai.request.frequency_penalty": float(params.frequency_penalty) or None,
        "gen_ai.request.presence_penalty": float(params.presence_penalty) or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def of_answer(tally: Tally, reasons: Iterable[str]) -> dict[str, Any]:
    """Usage and endings. reasons: of the samples, in their order."""
    found = {
        "gen_ai.usage.input_tokens": tally.prompt_tokens,
        "gen_ai.usage.output_tokens": tally.generated,
        "gen_ai.usage.cache_read.input_tokens": tally.cached_tokens,
        "gen_ai.response.finish_reasons": tuple(reasons),
        "gen_ai.response.time_to_first_chunk": tally.ttft_s,
        "gradus.device_seconds": tally.device_s,
    }
    return {name: value for name, value in found.items() if value is not None}


def in_vllm(tally: Tally, request: Request | None, timings: Timings | None, id: str) -> dict[str, Any]:
    """The same by vLLM's names, in seconds. timings: the first sample's, if it has ended."""
    found: dict[str, Any] = {
        "gen_ai.request.id": id,
        "gen_ai.request.n": request and request.params.n,
        "gen_ai.usage.prompt_tokens": tally.prompt_tokens,
        "gen_ai.usage.completion_tokens": tally.generated,
        "gen_ai.latency.time_in_queue": tally.queued_s,
        "gen_ai.latency.time_to_first_token": tally.ttft_s,
        "gen_ai.latency.e2e": tally.total_s,
    }
    if timings is not None:
        found["gen_ai.latency.time_in_model_inference"] = timings.total_s - timings.queued_s
        if timings.ttft_s is not None:
            found["gen_ai.latency.time_in_model_prefill"] = timings.ttft_s - timings.queued_s
            found["gen_ai.latency.time_in_model_decode"] = timings.total_s - timings.ttft_s
    return {name: value for name, value in found.items() if value is not None}
