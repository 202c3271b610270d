"""The table of metrics: our names, vLLM's for its dashboards, and each value's source.

The engine's values come from its last snapshot, as in /stats, so the two agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradus.engine.metrics import Metrics
from gradus.server.measures import Counts
from gradus.server.metrics.distribution import Distribution, steps_1_2_5
from gradus.server.metrics.meter import (
    SAMPLES,
    VLLM_REQUEST,
    VLLM_STEP_TOKENS,
    VLLM_TOKEN,
    VLLM_TTFT,
    Meter,
)

Kind = Literal["counter", "gauge", "histogram"]
Value = float | Distribution | Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of all values. model: its name. context_length: the model's; 0 while it loads. encoding: how many of
    the samples that wait do so for their prompt to be encoded. settings: the engine's. states: each that the engine may
    be in, and whether it is."""

    model: str
    metrics: Metrics
    meter: Meter
    counts: Counts
    waiting: int
    ready: bool
    context_length: int
    encoding: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, bool] = field(default_factory=dict)

    @property
    def asleep(self) -> bool:
        """Whether no engine is loaded, because there was nothing to do."""
        return any(self.states.get(state) for state in ("asleep", "waking"))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. name: without the prefix, and without a counter's `_total`; "" for one that is vLLM's alone.

    vllm: vLLM's name for it, without `vllm:`; "" if it has none. labels: in addition to the model. edges: a histogram's
    buckets in vLLM. vllm_labels, vllm_value: if vLLM has other ones.
    """

    name: str
    kind: Kind
    help: str
    value: Callable[[Source], Value]
    vllm: str = ""
    labels: tuple[str, ...] = ()
    edges: Callable[[Source], Sequence[float]] = lambda source: ()
    vllm_labels: tuple[str, ...] = ()
    vllm_value: Callable[[Source], Value] | None = None


def _tokens(source: Source) -> Sequence[float]:
    return steps_1_2_5(max(source.context_length, 1))


def _distribution(
    name: str,
    help: str,
    vllm: str = "",
    edges: Callable[[Source], Sequence[float]] = lambda source: (),
    attribute: str = "",
) -> Family:
    return Family(name, "histogram", help, lambda source: getattr(source.meter, attribute), vllm, (), edges)


def _cache(name: str) -> Callable[[Source], float]:
    return lambda source: getattr(source.metrics.cache, name, 0)


def _disk(name: str) -> Callable[[Source], float]:
    return lambda source: getattr(getattr(source.metrics.cache, "disk", None), name, 0)


def _host(name: str) -> Callable[[Source], float]:
    return lambda source: getattr(getattr(source.metrics.cache, "host", None), name, 0)


def _drafts(name: str) -> Callable[[Source], float]:
    return lambda source: sum(getattr(source.metrics.speculation, name, ()))


def _finished(source: Source) -> Mapping[tuple[str, ...], float]:
    """Return all reasons from the start: rate() misses the first event of a counter that appears with it."""
    reasons = ("stop", "length", "cancelled", "timeout", "deadline", "refused", "error")
    return {(reason,): source.meter.finished[reason] for reason in reasons}


def _drafted_steps(source: Source) -> float:
    """Return how often a sequence's drafts were verified: each time, there is a draft in the first position."""
    return next(iter(getattr(source.metrics.speculation, "drafted", ())), 0)


def _accepted_by_position(source: Source) -> Mapping[tuple[str, ...], float]:
    accepted = getattr(source.metrics.speculation, "accepted", ())
    return {(str(position),): count for position, count in enumerate(accepted)}


VLLM_REASONS = ("stop", "length", "abort", "error")
"""vLLM's finish reasons. All of ours that have another name are its "abort"."""


def _finished_in_vllm(source: Source) -> Mapping[tuple[str, ...], float]:
    merged: dict[tuple[str, ...], float] = dict.fromkeys([(reason,) for reason in VLLM_REASONS], 0.0)
    for (reason,), count in _finished(source).items():
        merged[reason if reason in VLLM_REASONS else "abort",] += count
    return merged


def _waiting(source: Source) -> Mapping[tuple[str, ...], float]:
    return {("capacity",): source.waiting - source.encoding, ("deferred",): source.encoding}


def _sleep_state(source: Source) -> Mapping[tuple[str, ...], float]:
    """Return vLLM's three states. Its second level gives the weights up, too, as a process that ends does."""
    asleep = float(source.asleep)
    return {("awake",): 1.0 - asleep, ("weights_offloaded",): 0.0, ("discard_all",): asleep}


def _prompt_tokens_by_source(source: Source) -> Mapping[tuple[str, ...], float]:
    """Return the prompt tokens of ended requests; all that the cache had count as its own, also those from a disk."""
    prompts, computed = source.meter.prompt_tokens.sum, source.meter.computed_tokens.sum
    return {("local_compute",): computed, ("local_cache_hit",): prompts - computed, ("external_kv_transfer",): 0.0}


CACHE_LABELS = (
    "block_size",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
)


def _cache_config(source: Source) -> Mapping[tuple[str, ...], float]:
    """Return the cache's settings as labels, as vLLM does; "None" where an engine has none."""
    settings, cache = source.settings, source.metrics.cache
    pages = None if cache is None else cache.pages
    prefixes = settings.get("switches", {}).get("prefix_cache")
    size = settings.get("page_size"), pages, settings.get("cache_tokens")
    values = *size, settings.get("kv_dtype"), prefixes, settings.get("memory_fraction")
    return {tuple(str(value) for value in values): 1.0}


DISTRIBUTIONS = (
    _distribution(
        "time_to_first_token_seconds",
        "From a request's arrival to a sample's first token.",
        "time_to_first_token_seconds",
        lambda _: VLLM_TTFT,
        "ttft",
    ),
    _distribution(
        "inter_token_seconds",
        "Between a sample's tokens; tokens that come together share the time before them.",
        "inter_token_latency_seconds",
        lambda _: VLLM_TOKEN,
        "inter_token",
    ),
    _distribution(
        "time_per_output_token_seconds",
        "A sample's mean time per token after the first.",
        "request_time_per_output_token_seconds",
        lambda _: VLLM_TOKEN,
        "per_token",
    ),
    _distribution(
        "request_seconds",
        "From a request's arrival to a sample's end.",
        "e2e_request_latency_seconds",
        lambda _: VLLM_REQUEST,
        "total",
    ),
    _distribution(
        "queue_seconds",
        "Before a sample's first step.",
        "request_queue_time_seconds",
        lambda _: VLLM_REQUEST,
        "queued",
    ),
    _distribution(
        "prefill_seconds",
        "From a sample's first step to its first token.",
        "request_prefill_time_seconds",
        lambda _: VLLM_REQUEST,
        "prefill",
    ),
    _distribution(
        "decode_seconds",
        "From a sample's first token to its last.",
        "request_decode_time_seconds",
        lambda _: VLLM_REQUEST,
        "decode",
    ),
    _distribution(
        "request_prompt_tokens", "Tokens of a request's prompt.", "request_prompt_tokens", _tokens, "prompt_tokens"
    ),
    _distribution(
        "request_computed_tokens",
        "Tokens of a request's prompt that the cache did not have.",
        "request_prefill_kv_computed_tokens",
        _tokens,
        "computed_tokens",
    ),
    _distribution(
        "request_generated_tokens", "Tokens of a sample.", "request_generation_tokens", _tokens, "generated_tokens"
    ),
    _distribution(
        "request_max_tokens",
        "The most tokens that a request may generate.",
        "request_max_num_generation_tokens",
        _tokens,
        "max_tokens",
    ),
    _distribution("", "The max_tokens of a request.", "request_params_max_tokens", _tokens, "max_tokens"),
    _distribution("request_samples", "The n of a request.", "request_params_n", lambda _: SAMPLES, "samples"),
    _distribution(
        "inference_seconds",
        "From a sample's first step to its end.",
        "request_inference_time_seconds",
        lambda _: VLLM_REQUEST,
        "inference",
    ),
    _distribution(
        "step_tokens",
        "Rows of a step, as the mean of each 0.1 s of work.",
        "iteration_tokens_total",
        lambda _: VLLM_STEP_TOKENS,
        "step_tokens",
    ),
    _distribution(
        "step_sequences", "Sequences of a step, as the mean of each 0.1 s of work.", attribute="step_sequences"
    ),
    _distribution("step_seconds", "Time of an engine step.", attribute="step"),
)

COUNTERS = (
    Family(
        "prompt_tokens",
        "counter",
        "Prompt tokens of accepted requests.",
        lambda source: source.metrics.prompt_tokens,
        "prompt_tokens",
    ),
    Family(
        "cached_tokens",
        "counter",
        "Prompt tokens found in the prefix cache.",
        lambda source: source.metrics.cached_tokens,
        "prompt_tokens_cached",
    ),
    Family(
        "",
        "counter",
        "Prompt tokens of ended requests, by where their keys and values came from.",
        _prompt_tokens_by_source,
        "prompt_tokens_by_source",
        ("source",),
    ),
    Family(
        "generated_tokens",
        "counter",
        "Generated tokens.",
        lambda source: source.metrics.generated_tokens,
        "generation_tokens",
    ),
    Family("samples", "counter", "Samples of requests that entered the queue.", lambda source: source.meter.entered),
    Family(
        "samples_finished",
        "counter",
        "Samples that have ended, by reason.",
        _finished,
        "request_success",
        ("finish_reason",),
        vllm_labels=("finished_reason",),
        vllm_value=_finished_in_vllm,
    ),
    Family(
        "preemptions",
        "counter",
        "Times that a running sequence was sent back to the queue.",
        lambda source: source.metrics.preemptions,
        "num_preemptions",
    ),
    Family(
        "prefix_cache_queries",
        "counter",
        "Tokens looked up in the prefix cache.",
        _cache("queried_positions"),
        "prefix_cache_queries",
    ),
    Family(
        "prefix_cache_hits",
        "counter",
        "Tokens found in the prefix cache.",
        _cache("hit_positions"),
        "prefix_cache_hits",
    ),
    Family("cache_evictions", "counter", "Pages that the prefix cache gave up.", _cache("evictions")),
    Family("cache_refusals", "counter", "Times that a sequence found no page.", _cache("refusals")),
    Family("host_hits", "counter", "Tokens whose keys and values came back from host_cache.", _host("hit_positions")),
    Family("host_copied_pages", "counter", "Pages copied to host_cache.", _host("copied_pages")),
    Family("host_evictions", "counter", "Pages that went from host_cache for newer ones.", _host("evictions")),
    Family("host_lost_pages", "counter", "Pages given up before they were copied to host_cache.", _host("lost")),
    Family("disk_hits", "counter", "Tokens whose keys and values were read from prefix_dir.", _disk("hit_positions")),
    Family("disk_written_bytes", "counter", "Bytes written to prefix_dir.", _disk("written_bytes")),
    Family("disk_lost_pages", "counter", "Pages that could not be written to prefix_dir.", _disk("lost")),
    Family("disk_damaged_files", "counter", "Files of prefix_dir that could not be used.", _disk("damaged")),
    Family("draft_tokens", "counter", "Drafted tokens.", _drafts("drafted"), "spec_decode_num_draft_tokens"),
    Family(
        "accepted_draft_tokens",
        "counter",
        "Drafted tokens that were accepted.",
        _drafts("accepted"),
        "spec_decode_num_accepted_tokens",
    ),
    Family(
        "drafts",
        "counter",
        "Times that drafts of a sequence were verified.",
        _drafted_steps,
        "spec_decode_num_drafts",
    ),
    Family(
        "",
        "counter",
        "Drafted tokens that were accepted, by their position.",
        _accepted_by_position,
        "spec_decode_num_accepted_tokens_per_pos",
        ("position",),
    ),
    Family("steps", "counter", "Engine steps.", lambda source: source.metrics.steps),
    Family("device_busy_seconds", "counter", "Time of all engine steps.", lambda source: source.metrics.busy_s),
    Family(
        "device_unshared_seconds",
        "counter",
        "Time of steps whose sequences had all ended meanwhile, which no request pays for.",
        lambda source: source.metrics.unshared_s,
    ),
    Family(
        "rejected_requests",
        "counter",
        "Requests turned away because the queue was full.",
        lambda source: source.counts.rejected,
    ),
    Family("abandoned_requests", "counter", "Requests whose client left.", lambda source: source.counts.abandoned),
    Family("stalled_requests", "counter", "Requests whose client did not read.", lambda source: source.counts.stalled),
    Family(
        "engine_restarts",
        "counter",
        "Times that another engine was started after a failure.",
        lambda source: source.counts.restarts,
    ),
    Family("self_checks", "counter", "Self-checks of the idle engine.", lambda source: source.counts.self_checks),
    Family(
        "failed_self_checks",
        "counter",
        "Self-checks that found a defect.",
        lambda source: source.counts.failed_self_checks,
    ),
)

GAUGES = (
    Family("ready", "gauge", "1 while requests are taken.", lambda source: float(source.ready)),
    Family(
        "engine_state",
        "gauge",
        "1 for the engine's present state, 0 for all others.",
        lambda source: {(state,): float(present) for state, present in source.states.items()},
        labels=("state",),
    ),
    Family(
        "engine_asleep",
        "gauge",
        "1 from the engine's falling asleep until it is awake again.",
        lambda source: float(source.asleep),
        "engine_sleep_state",
        vllm_labels=("sleep_state",),
        vllm_value=_sleep_state,
    ),
    Family("running", "gauge", "Samples that run.", lambda source: source.metrics.active, "num_requests_running"),
    Family(
        "waiting", "gauge", "Samples that wait for the engine.", lambda source: source.waiting, "num_requests_waiting"
    ),
    Family(
        "waiting_by_reason",
        "gauge",
        "Samples that wait for a place in the engine's steps (capacity), or for their prompt's encoding (deferred).",
        _waiting,
        "num_requests_waiting_by_reason",
        ("reason",),
    ),
    Family(
        "",
        "gauge",
        "The settings of the cache, as labels.",
        _cache_config,
        "cache_config_info",
        vllm_labels=CACHE_LABELS,
    ),
    Family(
        "cache_use",
        "gauge",
        "The part of the cache's pages that sequences hold, 0 to 1.",
        _cache("utilization"),
        "kv_cache_usage_perc",
    ),
    Family("host_pages", "gauge", "Pages in host_cache.", _host("pages")),
    Family("host_most_pages", "gauge", "Pages that fit in host_cache.", _host("most_pages")),
    Family("disk_bytes", "gauge", "Bytes of the files in prefix_dir.", _disk("bytes")),
    Family("disk_files", "gauge", "Files in prefix_dir, a page each.", _disk("files")),
)

KEY_COUNTERS = (
    Family(
        "key_requests",
        "counter",
        "HTTP requests by API key, route and status.",
        lambda source: source.meter.by_key.requests,
        labels=("key", "route", "status"),
    ),
    Family(
        "key_prompt_tokens",
        "counter",
        "Prompt tokens by API key.",
        lambda source: source.meter.by_key.prompt_tokens,
        labels=("key",),
    ),
    Family(
        "key_generated_tokens",
        "counter",
        "Generated tokens by API key.",
        lambda source: source.meter.by_key.generated_tokens,
        labels=("key",),
    ),
    Family(
        "key_device_seconds",
        "counter",
        "Seconds of the device by API key, shared by rows.",
        lambda source: source.meter.by_key.device_s,
        labels=("key",),
    ),
    Family(
        "key_cost",
        "counter",
        "Their price at --price-per-hour, in its currency.",
        lambda source: {key: source.meter.cost_of(s) for key, s in source.meter.by_key.device_s.items()},
        labels=("key",),
    ),
)

FAMILIES = (*DISTRIBUTIONS, *COUNTERS, *GAUGES, *KEY_COUNTERS)
