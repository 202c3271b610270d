"""/metrics: names that dashboards know, numbers that reconcile with /stats and with the client's own clock."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gradus.cache.usage import CacheUsage, DiskUsage, HostUsage
from gradus.engine.metrics import Metrics, Speculation
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output, Timings
from gradus.errors import RequestError
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.failures import ClientGone, RequestFailed, RequestTimeout, Unavailable
from gradus.server.http.keys import Key, digest_of, new_key, write_keys
from gradus.server.measures import Counts, Tally
from gradus.server.metrics.distribution import Distribution
from gradus.server.metrics.exposition import Exposition, own_metric, vllm_metric
from gradus.server.metrics.families import FAMILIES, Source
from gradus.server.metrics.meter import VLLM_TTFT, Meter
from gradus.text.completion import Completion, Delta
from tests.server.conftest import events, eventually, running
from tests.server.scripted import ScriptedCore

# The metrics that vLLM's Grafana dashboards query, with the type that they take each for. From examples/observability:
# grafana, performance_statistics and query_statistics as in the sdist of 0.33.0; vllm_overview, vllm_instances,
# vllm_kv_cache, vllm_service_status and vllm_speculative_decoding as in the repository (commits 0b9faa41 to 712d7547).
# The list leaves out metrics that vLLM itself has with an option alone: kv_block_* (--kv-cache-metrics), nixl_*,
# kv_offload_*, simple_kv_offload_*, external_prefix_cache_* and num_requests_kv_fetch_by_stage (KV connectors),
# lora_requests_info, estimated_* (MFU), sleep_mode_* and rl_weight_update_* (once such a call was made). Two of theirs
# are missing here: mm_cache_*, since no model reads pictures, and prompt_tokens_cached_by_source_total, since hits in
# host memory are not counted apart.
OF_VLLM = {
    "e2e_request_latency_seconds": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "iteration_tokens_total": "histogram",
    "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter",
    "request_success_total": "counter",
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "num_requests_waiting_by_reason": "gauge",
    "num_preemptions_total": "counter",
    "prefix_cache_hits_total": "counter",
    "prefix_cache_queries_total": "counter",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
    "request_inference_time_seconds": "histogram",
    "cache_config_info": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prompt_tokens_cached_total": "counter",
    "prompt_tokens_by_source_total": "counter",
    "request_prefill_kv_computed_tokens": "histogram",
    "spec_decode_num_drafts_total": "counter",
    "spec_decode_num_draft_tokens_total": "counter",
    "spec_decode_num_accepted_tokens_total": "counter",
}

# The same dashboards, from the library that vLLM counts HTTP requests with, and from Prometheus's own.
OF_LIBRARIES = {
    "http_requests": {"handler", "method", "status"},
    "http_request_duration_seconds": {"handler", "method"},
    "process_cpu_seconds": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
    "process_open_fds": set(),
    "process_max_fds": set(),
}


def scraped(server, **headers):
    """Metrics by name, as a Prometheus server reads them: {name: family}."""
    answer = server.http.get("/metrics", headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def value(families, name, **labels):
    """The sum of the samples of this name that have these labels."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert found, name
    return sum(found)


# -- names -------------------------------------------------------------------------------------------------------------


def test_the_names_that_vllms_dashboards_query_are_there_with_their_types_and_labels(serving):
    server = serving()
    assert server.generate(prompt="a", max_tokens=3).status_code == 200
    families = scraped(server)
    for name, kind in OF_VLLM.items():
        # the parser takes `_total` off a counter's name, and leaves it where a histogram happens to have it
        family = families[f"vllm:{name.removesuffix('_total') if kind == 'counter' else name}"]
        assert family.type == kind and family.samples
        for sample in family.samples:
            assert sample.labels["model_name"] == "scripted" and sample.labels["engine"] == "0"
            assert kind != "counter" or sample.name == f"vllm:{name}"
    for name, labels in OF_LIBRARIES.items():
        assert families[name].samples
        assert all(sample.labels.keys() - {"le"} == labels for sample in families[name].samples)
    reasons = {sample.labels["finished_reason"] for sample in families["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}


def test_the_overview_of_vllm_finds_errors_by_class_of_status_and_waiting_by_reason(serving):
    server = serving(partial(ScriptedCore, poison=13, slots=1, step_s=0.005))
    server.generate(prompt=[13], max_tokens=3)
    server.generate(prompt="a", max_tokens=0)
    server.http.get("/nowhere")
    server.http.get("/health")
    leaving = [server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}') for _ in range(3)]
    assert eventually(lambda: server.stats()["active"] == 1 and server.stats()["waiting"] == 2)
    families = scraped(server)
    for connection in leaving:
        server.leave(connection, reset=True)
    counted = {tuple(each.labels.values()): each.value for each in families["http_requests"].samples}
    assert counted == {
        ("/generate", "POST", "5xx"): 1, ("/generate", "POST", "4xx"): 1, ("none", "GET", "4xx"): 1,
        ("/stats", "GET", "2xx"): counted["/stats", "GET", "2xx"],
    }  # fmt: skip
    assert families["http_requests"].samples[0].labels.keys() == {"handler", "method", "status"}
    assert value(families, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(families, "vllm:num_requests_waiting_by_reason", reason="deferred") == 0
    assert value(families, "http_request_duration_seconds_count", handler="/generate", method="POST") == 2
    assert 0 < value(families, "http_request_duration_seconds_sum", handler="/generate") < 20
    assert value(families, "process_resident_memory_bytes") > 1e6 and value(families, "process_cpu_seconds_total") > 0


def test_the_objectives_that_vllms_overview_offers_are_edges_of_its_histograms(serving):
    """It reads the share of requests within one from the bucket of that very label."""
    families = scraped(serving())

    def edges(name):
        return {sample.labels["le"] for sample in families[f"vllm:{name}"].samples if "le" in sample.labels}

    assert {"0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "10.0"} <= edges("time_to_first_token_seconds")
    offered = {"0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5"}
    assert offered <= edges("request_time_per_output_token_seconds")


def test_the_settings_of_the_cache_are_labels():
    cache = CacheUsage(10, 16, 4, 3, 3, 60, 3, queried_positions=50, hit_positions=20, evictions=2, refusals=1)
    settings = {"page_size": 16, "cache_tokens": 160, "kv_dtype": "fp8", "switches": {"prefix_cache": True}}
    source = Source("m", Metrics(cache=cache), Meter(), Counts(), 0, ready=True, context_length=9, settings=settings)
    (family,) = [family for family in FAMILIES if family.vllm == "cache_config_info"]
    (sample,) = vllm_metric(family, source).samples
    assert sample.value == 1 and sample.labels == {
        "model_name": "m", "engine": "0", "block_size": "16", "num_gpu_blocks": "10", "kv_cache_size_tokens": "160",
        "cache_dtype": "fp8", "enable_prefix_caching": "True", "gpu_memory_utilization": "None",
    }  # fmt: skip


def test_vllms_buckets_are_vllms(serving):
    families = scraped(serving())
    buckets = [
        float(sample.labels["le"])
        for sample in families["vllm:time_to_first_token_seconds"].samples
        if sample.name.endswith("_bucket")
    ]
    assert buckets == [*VLLM_TTFT, float("inf")]


@pytest.mark.parametrize(
    "name", ["time_to_first_token", "inter_token", "request", "queue", "prefill", "decode", "step"]
)
def test_our_buckets_tell_one_millisecond_from_the_next(serving, name):
    family = scraped(serving(metrics_alias="none"))[f"gradus_{name}_seconds"]
    edges = {float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")}
    assert {step / 1000 for step in range(1, 11)} <= edges


def test_without_the_alias_there_are_only_our_names(serving):
    families = scraped(serving(metrics_alias="none"))
    assert families and all(name.startswith("gradus_") for name in families)
    assert all(family.documentation.endswith((".", "1.", "currency.")) for family in families.values())


def test_there_are_metrics_while_the_model_loads():
    client = EngineClient(ServerConfig(model="not-loaded"))
    families = text_string_to_metric_families(Exposition([client.measured], alias=True).text().decode())
    found = {family.name: family for family in families}
    assert found["gradus_ready"].samples[0].value == 0
    states = {sample.labels["state"]: sample.value for sample in found["gradus_engine_state"].samples}
    assert states.pop("loading") == 1 and {"ready", "stalled", "restarting", "failed"} <= states.keys()
    assert not any(states.values())
    assert found["vllm:request_prompt_tokens"].samples[0].labels["model_name"] == "not-loaded"


# -- numbers -----------------------------------------------------------------------------------------------------------


def in_threads(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_every_sample_ends_for_one_reason_and_the_totals_are_those_of_stats(serving):
    """Endings of every kind, at once: by length, stop string, fault, timeout, departure, and a late refusal."""
    server = serving(partial(ScriptedCore, step_s=0.005, poison=13, slots=8))
    leaving = server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true, "n": 2}')
    assert eventually(lambda: server.engine.running)
    in_threads(
        lambda: server.generate(prompt="a", max_tokens=20, n=3),
        lambda: server.generate(prompt="a", max_tokens=20, n=2, stream=True),
        lambda: server.generate(prompt="a", max_tokens=4000, stop=["5 "]),
        lambda: server.generate(prompt=[7, 13], max_tokens=20),
        lambda: server.generate(prompt="a", max_tokens=4000, timeout=0.1),
        lambda: server.generate(prompt=[1] * 5000, max_tokens=1),
        lambda: server.generate(prompt="a", max_tokens=0),
    )
    server.leave(leaving, reset=True)
    assert eventually(server.idle)
    assert eventually(lambda: server.stats()["cancelled"] == 3)
    families, stats = scraped(server), server.stats()
    ended = {sample.labels["finish_reason"]: sample.value for sample in families["gradus_samples_finished"].samples}
    assert ended == {"length": 5, "stop": 1, "error": 1, "timeout": 1, "cancelled": 2, "refused": 1, "deadline": 0}
    assert value(families, "gradus_samples_total") == sum(ended.values()) == 11
    assert ended["error"] == stats["failed"] and ended["length"] + ended["stop"] == stats["completed"]
    assert value(families, "vllm:request_success_total", finished_reason="abort") == 4
    for ours, theirs in (("prompt_tokens", "prompt_tokens"), ("generated_tokens", "generation_tokens")):
        assert value(families, f"gradus_{ours}_total") == value(families, f"vllm:{theirs}_total") == stats[ours]
    assert value(families, "gradus_steps_total") == stats["steps"] == value(families, "gradus_step_seconds_count")
    assert value(families, "gradus_abandoned_requests_total") == stats["abandoned"] == 1
    # a histogram of a sample's end has one entry for each that the engine ended
    assert value(families, "gradus_request_seconds_count") == 8
    assert value(families, "gradus_running") == value(families, "gradus_waiting") == 0


def test_times_lie_between_the_engines_steps_and_the_clients_clock(serving):
    server = serving(partial(ScriptedCore, step_s=0.05))
    start = time.monotonic()
    with server.http.stream("POST", "/generate", json={"prompt": "a", "max_tokens": 5, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line)
        first = time.monotonic() - start
        for _ in lines:
            pass
    whole = time.monotonic() - start
    families = scraped(server)
    to_first = value(families, "gradus_time_to_first_token_seconds_sum")
    assert 0.05 <= to_first <= first
    assert 0.25 <= value(families, "gradus_request_seconds_sum") <= whole
    assert value(families, "gradus_inter_token_seconds_count") == 4
    between = value(families, "gradus_inter_token_seconds_sum")
    assert 0.25 <= to_first + between <= whole  # the first token may be seen late


def test_requests_are_counted_by_key_and_cost_what_they_used(tmp_path):
    alice, root = new_key(), new_key()
    keys = {"alice": Key("alice", digest_of(alice)), "root": Key("root", digest_of(root), "admin")}
    write_keys(tmp_path / "keys.yaml", keys)
    core = partial(ScriptedCore, step_s=0.01)
    with running(core, api_keys=str(tmp_path / "keys.yaml"), price_per_hour=3600.0) as server:
        headers = {"x-api-key": alice}
        body = {"prompt": [1] * 9, "max_tokens": 11}
        spent = server.http.post("/generate", json=body, headers=headers).json()["usage"]["device_seconds"]
        assert server.http.post("/generate", json={"prompt": ""}, headers=headers).status_code == 400
        assert server.http.get("/generate").status_code == 401
        families = scraped(server, **{"x-api-key": root})
    assert value(families, "gradus_key_requests_total", key="alice", route="/generate", status="200") == 1
    assert value(families, "gradus_key_requests_total", key="alice", route="/generate", status="400") == 1
    assert value(families, "gradus_key_requests_total", key="", route="(no route)", status="401") == 1
    assert value(families, "gradus_key_prompt_tokens_total", key="alice") == 9
    assert value(families, "gradus_key_generated_tokens_total", key="alice") == 11
    seconds = value(families, "gradus_key_device_seconds_total", key="alice")
    assert seconds == pytest.approx(spent, abs=1e-5)
    assert seconds == pytest.approx(value(families, "gradus_device_busy_seconds_total"))  # it was alone
    assert value(families, "gradus_key_cost_total", key="alice") == pytest.approx(seconds)  # a unit per second


def test_all_requests_share_the_device_between_them(serving):
    server = serving(partial(ScriptedCore, step_s=0.004, slots=8))
    spent = []

    def ask(tokens, stream):
        answer = server.generate(prompt=[1] * 5, max_tokens=tokens, n=2, stream=stream)
        usage = events(answer)[0][-1]["usage"] if stream else answer.json()["usage"]
        spent.append(usage["device_seconds"])

    in_threads(*(partial(ask, 20 * turn, turn % 2 == 0) for turn in range(1, 5)))
    busy = value(scraped(server), "gradus_device_busy_seconds_total")
    assert sum(spent) == pytest.approx(busy, abs=1e-5)  # each is rounded to a microsecond


def test_a_request_whose_client_leaves_is_charged_what_it_had_used(serving):
    server = serving(partial(ScriptedCore, step_s=0.01))
    leaving = server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}')
    assert eventually(lambda: server.engine.totals.busy_s > 0.5)
    server.leave(leaving, reset=True)
    assert eventually(server.idle)
    families = scraped(server)
    busy = value(families, "gradus_device_busy_seconds_total")
    charged = value(families, "gradus_key_device_seconds_total", key="")
    assert busy >= 0.5 and busy - 0.3 <= charged <= busy  # the last report, and steps until the engine hears of it


def test_a_prompts_tokens_are_counted_from_the_start(serving):
    """The answer may end before its stream closes: its line in the log, and its key's total, have them all the same."""
    server = serving(partial(ScriptedCore, step_s=0.01))
    leaving = server.send(b'{"prompt": "abc", "max_tokens": 4000, "stream": true}')
    assert eventually(lambda: server.engine.running)
    (stream,) = server.client._streams.values()
    assert stream.tally.prompt_tokens == 3
    server.leave(leaving, reset=True)
    assert eventually(server.idle)
    assert value(scraped(server), "gradus_key_prompt_tokens_total", key="") == 3


def test_a_long_prompt_is_charged_before_its_first_token():
    """The shares of running samples come with the engine's metrics, whether or not they have tokens."""

    class Reading(ScriptedCore):
        def _advance(self, sample):
            return Output(sample.request.id, sample.index)

    with running(partial(Reading, step_s=0.01)) as server:
        leaving = server.send(b'{"prompt": "a", "max_tokens": 5, "stream": true}')
        assert eventually(lambda: server.engine.totals.busy_s > 0.5)
        server.leave(leaving, reset=True)
        assert eventually(server.idle)
        assert value(scraped(server), "gradus_key_device_seconds_total", key="") > 0.2


# -- by hand -----------------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def metered(prompts=((1, 2, 3),), n=1):
    """A meter on a clock of its own, and a stream of requests with these prompts that has just entered."""
    clock = Clock()
    meter = Meter(clock=clock)
    meter.report((), 0.0, Metrics())
    ids = [f"r{number}" for number in range(len(prompts))]
    tally = Tally(n * len(prompts), arrived=clock.now)
    stream = SimpleNamespace(ids=ids, samples=tally.samples, tally=tally, requests={})  # what a meter sees of a Stream
    limits = ModelLimits(vocab_size=100, context_length=1000)
    for name, prompt in zip(ids, prompts, strict=True):
        stream.requests[name] = Request.create(name, prompt, SamplingParams(max_tokens=9, n=n), limits)
    meter.enter(stream)
    return meter, clock, stream


def delta(tokens=(5,), name="r0", index=0, end=None, cached=0):
    timings = Timings(queued_s=0.1, ttft_s=0.3, total_s=0.9, tokens=4)
    completion = end and Completion(name, 0, index, "", (5,) * 4, None, end, None, 3, cached, timings)
    return Delta(name, 0, index, "", tuple(tokens), (), completion)


def test_the_size_of_steps_leaves_out_padding_and_rejected_drafts():
    meter, _, _ = metered()
    drafts = Speculation(drafts=2, why="", steps=1, tokens=1, drafted=(1, 1), accepted=(0, 0))
    meter.report((), 0.8, Metrics(steps=2, batch_total=6, rows=20, padding_rows=10, speculation=drafts))
    assert (meter.step_tokens.count, meter.step_tokens.sum) == (2, 8)
    assert (meter.step_sequences.count, meter.step_sequences.sum) == (2, 6)


def test_tokens_of_one_step_share_the_time_before_them():
    meter, clock, _ = metered()
    meter.report([delta()], 0.0, None)
    clock.now += 0.0057
    meter.report([delta([1, 2, 3])], 0.0, None)
    assert meter.inter_token.count == 3 and meter.inter_token.sum == pytest.approx(0.0057)
    assert dict(meter.inter_token.cumulative([0.001, 0.002]))["0.002"] == 3


def test_prompt_tokens_are_told_apart_by_where_their_keys_and_values_came_from():
    meter, _, _ = metered(prompts=[[1, 2, 3]] * 2)
    meter.report([delta(end="length", cached=2), delta(name="r1", end="length")], 0.0, None)
    assert (meter.computed_tokens.count, meter.computed_tokens.sum) == (2, 1 + 3)
    source = Source("m", Metrics(), meter, Counts(), 0, ready=True, context_length=9)
    (family,) = [family for family in FAMILIES if family.vllm == "prompt_tokens_by_source"]
    found = {sample.labels["source"]: sample.value for sample in vllm_metric(family, source).samples}
    assert found == {"local_compute": 4, "local_cache_hit": 2, "external_kv_transfer": 0}


def test_steps_that_bring_a_stream_no_token_are_no_gap():
    meter, clock, _ = metered()
    for _ in range(3):
        clock.now += 0.01
        meter.report([delta([])], 0.0, None)
    assert meter.ttft.count == meter.inter_token.count == 0
    clock.now += 0.01
    meter.report([delta()], 0.0, None)
    assert meter.ttft.sum == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClientGone("left"), "cancelled"),
        (RequestTimeout("late"), "timeout"),
        (RequestError("no", param="prompt"), "refused"),
        (Unavailable("bye", "draining"), "cancelled"),
        (Unavailable("slow", "stalled"), "cancelled"),
        (Unavailable("broken", "failed"), "error"),
        (RequestFailed(), "error"),
    ],
)
def test_what_the_engine_did_not_end_is_counted_when_its_stream_closes(error, reason):
    meter, _, stream = metered(n=3)
    meter.report([delta(), delta(index=1, end="length")], 0.0, None)
    meter.leave(stream, error)
    meter.leave(stream, error)  # streams may be closed twice
    assert meter.finished == {"length": 1, reason: 2} and meter.entered == 3
    meter.report([delta()], 0.0, None)  # what comes later is nobody's
    assert stream.tally.generated == 2


def test_a_report_of_hundreds_of_streams_costs_microseconds_each():
    meter, clock, _ = metered(n=16)
    deltas = [delta(index=index) for index in range(16)] * 16
    meter.report(deltas, 0.0, None)

    def seconds():
        clock.now += 0.001
        start = time.perf_counter()
        meter.report(deltas, 0.001, None)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(30)) / len(deltas) < 10e-6  # some 0.4 µs on an idle core


def test_every_value_of_the_engine_has_a_metric():
    host = HostUsage(30, 40, 2048, hit_positions=48, copied_pages=33, evictions=6, lost=9)
    disk = DiskUsage(8, 4096, 1 << 20, hit_positions=16, written_bytes=900, queued=1, lost=5, damaged=4)
    cache = CacheUsage(
        10, 16, 4, 3, 3, 60, 3, queried_positions=50, hit_positions=20, evictions=2, refusals=1, disk=disk, host=host
    )
    drafts = Speculation(drafts=2, why="", steps=9, tokens=20, drafted=(9, 9), accepted=(6, 4))
    metrics = Metrics(preemptions=7, cached_tokens=20, active=3, cache=cache, speculation=drafts)
    counts, states = Counts(rejected=5, restarts=6, self_checks=8), {"loading": False, "ready": True}
    source = Source("m", metrics, Meter(), counts, waiting=2, ready=True, context_length=100, states=states)
    ours = {family.name: own_metric(family, source).samples for family in FAMILIES if family.name}
    for name, wanted in {
        "preemptions": 7, "prefix_cache_queries": 50, "prefix_cache_hits": 20, "cache_evictions": 2,
        "cache_refusals": 1, "draft_tokens": 18, "accepted_draft_tokens": 10, "running": 3, "waiting": 2,
        "disk_hits": 16, "disk_written_bytes": 900, "disk_lost_pages": 5, "disk_damaged_files": 4,
        "host_hits": 48, "host_copied_pages": 33, "host_evictions": 6, "host_lost_pages": 9, "host_pages": 30,
        "host_most_pages": 40, "disk_bytes": 4096, "disk_files": 8, "cache_use": 0.4, "ready": 1,
        "rejected_requests": 5, "drafts": 9, "engine_restarts": 6, "self_checks": 8,
    }.items():  # fmt: skip
        assert [sample.value for sample in ours[name]] == [wanted]
    assert {each.labels["state"]: each.value for each in ours["engine_state"]} == {"loading": 0, "ready": 1}
    (positions,) = [family for family in FAMILIES if family.vllm == "spec_decode_num_accepted_tokens_per_pos"]
    accepted = {each.labels["position"]: each.value for each in vllm_metric(positions, source).samples}
    assert accepted == {"0": 6, "1": 4}
    assert all(family.name or family.vllm for family in FAMILIES)
    (prompts,) = [family for family in FAMILIES if family.vllm == "request_prompt_tokens"]
    edges = [sample.labels["le"] for sample in vllm_metric(prompts, source).samples if "le" in sample.labels]
    assert edges == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "+Inf"]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 4)), max_size=20))
def test_a_distribution_counts_like_a_list(values):
    edges = (0.5, 1, 2.5, 5)
    distribution, every = Distribution(edges), []
    for seen, times in values:
        distribution.observe(seen, times)
        every += [seen] * times
    assert distribution.count == len(every) and distribution.sum == pytest.approx(sum(every))
    for some in (edges, (1, 5)):
        counts = {edge: sum(seen <= edge for seen in every) for edge in some}
        assert [count for _, count in distribution.cumulative(some)] == [*counts.values(), len(every)]


def test_the_price_is_a_setting():
    assert Meter(ServerConfig(price_per_hour=7.2).price_per_hour).cost_of(10) == pytest.approx(0.02)
    assert Meter().cost_of(10) == 0
