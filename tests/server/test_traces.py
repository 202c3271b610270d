"""OpenTelemetry traces: one span for each request, its phases, its parent, and a collector that hangs or is gone."""

import gzip
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.errors import ConfigError
from gradus.server.addresses import traces_url
from gradus.server.config import ServerConfig
from gradus.server.http.keys import Key, digest_of, new_key, write_keys
from tests.server.conftest import eventually, running
from tests.server.saying import SayingCore
from tests.server.scripted import ScriptedCore

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ERROR, UNSET = 2, 0


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP. hold: answer nothing until it is set."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.resources, self.scopes = [], [], []
        self.hold = threading.Event()
        self.hold.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def requests(self):
        """The requests' own spans: those that no other span here is above."""
        inner = {"queue", "prefill", "decode"}
        return [span for span in self.spans if span.name not in inner]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.hold.wait(30)
        body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.server.scopes.append(scope.scope)
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def attributes(holder):
    return {one.key: plain(one.value) for one in holder.attributes}


def plain(value):
    kind = value.WhichOneof("value")
    return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@pytest.fixture
def collector(monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with Collector() as server:
        yield server
        server.hold.set()
        server.shutdown()


def traced(collector, load=None, **settings):
    return running(load, otlp_traces_endpoint=collector.url, **settings)


def test_a_request_has_a_span_with_its_phases_below_it(collector, caplog):
    caplog.set_level(logging.INFO)
    with traced(collector, partial(ScriptedCore, step_s=0.002), log_requests=True) as server:
        body = {"prompt": "abc", "max_tokens": 5, "temperature": 0.5, "seed": 7, "top_k": 3}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        model = answer.json()["model"]
        assert eventually(lambda: len(collector.spans) == 4), [span.name for span in collector.spans]
        address = server.port
    (span,) = collector.requests()
    found = attributes(span)
    assert span.name == f"text_completion {model}" and span.kind == 2 and span.status.code == UNSET  # 2: SERVER
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "gradus",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 3.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": False,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.input_tokens": answer.json()["usage"]["prompt_tokens"],
        "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200,
        "http.route": "/v1/completions",
        "server.port": address,
        "gradus.request.id": answer.headers["x-request-id"],
    }
    assert expected.items() <= found.items()
    assert found["gen_ai.latency.time_to_first_token"] > 0  # vLLM's, as the alias is on
    phases = [collector.named(name)[0] for name in ("queue", "prefill", "decode")]
    assert {phase.parent_span_id for phase in phases} == {span.span_id}
    times = [(phase.start_time_unix_nano, phase.end_time_unix_nano) for phase in phases]
    assert all(abs(end - begin) <= 1000 for (_, end), (begin, _) in itertools.pairwise(times))
    assert span.start_time_unix_nano <= times[0][0] and times[-1][1] <= span.end_time_unix_nano + 1_000_000
    assert times[2][1] - times[2][0] >= 3 * 2_000_000  # four steps of 2 ms, with a margin
    assert collector.resources[0]["service.name"] == "gradus"
    assert "semantic-conventions-genai v" in attributes(collector.scopes[0])["gradus.conventions"]
    # the id of the trace joins it with the line of the log
    line = next(each.message for each in caplog.records if each.name == "gradus.server.requests")
    assert f"trace_id={span.trace_id.hex()}" in line and answer.headers["x-request-id"] in line


def test_no_text_is_in_a_span_unless_it_is_asked_for(collector):
    body = {"messages": [{"role": "user", "content": "secret words"}], "max_tokens": 3, "stop": ["private"]}
    for captures in (False, True):
        collector.spans.clear()
        with traced(collector, partial(SayingCore, "Hello."), otlp_capture_content=captures) as server:
            assert server.http.post("/v1/chat/completions", json=body).status_code == 200
            server.http.post("/v1/chat/completions", json=body | {"max_tokens": "secret"})  # refused with its value
            assert eventually(lambda: len(collector.requests()) == 2)
        everything = "".join(span.SerializeToString().decode("latin-1") for span in collector.spans)
        assert ("secret" in everything) == captures and "private" not in everything
    assert {span.name for span in collector.requests()} == {"chat saying", "chat"}  # the other body was refused
    found = attributes(next(span for span in collector.requests() if "gen_ai.input.messages" in attributes(span)))
    said = [{"role": "user", "parts": [{"type": "text", "content": "secret words"}]}]
    assert json.loads(found["gen_ai.input.messages"]) == said
    (answer,) = json.loads(found["gen_ai.output.messages"])
    assert answer["finish_reason"] == "length" and answer["parts"][0]["content"] == "Hel"


def test_captured_texts_are_cut(collector):
    from gradus.server.traces.content import CUT, LARGEST, answers

    made = json.loads(answers([("a" * LARGEST * 2, "stop"), ("b", "stop")]))
    assert [one["parts"][0]["content"] for one in made] == ["a" * LARGEST + CUT]
    with traced(collector, otlp_capture_content=True) as server:
        server.generate(prompt=[1, 2, 3], max_tokens=1)
        assert eventually(collector.requests)
    assert "(3 token ids)" in attributes(collector.requests()[0])["gen_ai.input.messages"]


def test_the_parent_of_a_client_is_taken_over_with_its_decision(collector):
    with traced(collector) as server:
        ask = partial(server.http.post, "/generate", json={"prompt": "a", "max_tokens": 1})
        ask(headers={"traceparent": PARENT, "tracestate": "vendor=1"})
        ask(headers={"traceparent": PARENT[:-1] + "0"})  # not sampled
        assert eventually(collector.requests)
        time.sleep(0.1)  # a span that should not come would have come
    (span,) = collector.requests()
    assert span.trace_id.hex() == PARENT.split("-")[1] and span.parent_span_id.hex() == PARENT.split("-")[2]
    assert span.trace_state == "vendor=1"


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "nonsense")],
        [("traceparent", PARENT.replace("0af765", "zzzzzz"))],
        [("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01")],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("traceparent", PARENT.replace("00-", "ff-", 1))],
        [("tracestate", "vendor=1")],
    ],
)
def test_a_malformed_parent_is_ignored(collector, headers):
    with traced(collector) as server:
        answer = server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=headers)
        assert answer.status_code == 200
        assert eventually(collector.requests)
    (span,) = collector.requests()
    assert not span.parent_span_id and span.trace_id.hex() != PARENT.split("-")[1] and not span.trace_state


@given(st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate", b"other"]), st.binary(max_size=80))))
def test_no_header_makes_reading_the_parent_fail(headers):
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from gradus.server.traces.spans import parent_of

    parent_of(headers)


def ended(collector, count=1):
    assert eventually(lambda: len(collector.requests()) >= count)
    return [(span, attributes(span)) for span in collector.requests()]


def test_a_refused_request_is_its_clients_fault(collector):
    with traced(collector) as server:
        assert server.generate(prompt="a", max_tokens=0).status_code == 400
        ((span, found),) = ended(collector)
    assert (found["error.type"], found["http.response.status_code"]) == ("invalid_request", 400)
    assert span.status.code == UNSET


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_runs_out_of_time_is_an_error(collector, stream):
    with traced(collector, partial(ScriptedCore, step_s=0.01)) as server:
        server.generate(prompt="a", max_tokens=4000, timeout=0.1, stream=stream)
        ((span, found),) = ended(collector)
    assert (span.status.code, span.status.message, found["error.type"]) == (ERROR, "timeout", "timeout")
    assert found["http.response.status_code"] == (200 if stream else 504)
    assert found["gen_ai.response.finish_reasons"] == ["timeout"] and found["gen_ai.usage.output_tokens"] > 0


def test_a_client_that_leaves_is_no_error_of_the_server(collector):
    with traced(collector, partial(ScriptedCore, step_s=0.005)) as server:
        leaving = server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}')
        assert eventually(lambda: server.engine.totals.generated_tokens > 5)
        server.leave(leaving, reset=True)
        ((span, found),) = ended(collector)
    assert span.status.code == UNSET and found["error.type"] == "client_gone"
    assert found["gen_ai.response.finish_reasons"] == ["cancelled"]


def test_several_samples_have_their_phases_up_to_a_limit(collector):
    from gradus.server.traces.spans import MOST_SAMPLES

    with traced(collector) as server:
        server.generate(prompt="a", max_tokens=2, n=MOST_SAMPLES + 2)
        ended(collector)
        assert eventually(lambda: len(collector.spans) == 1 + 3 * MOST_SAMPLES)
    assert sorted(attributes(span)["gradus.sample"] for span in collector.named("decode")) == [*range(MOST_SAMPLES)]
    found = attributes(collector.requests()[0])
    assert found["gen_ai.request.choice.count"] == MOST_SAMPLES + 2 == len(found["gen_ai.response.finish_reasons"])


def test_a_sender_without_a_key_makes_no_span(collector, tmp_path):
    key, file = new_key(), tmp_path / "keys.yaml"
    write_keys(file, {"anna": Key("anna", digest_of(key))})
    with traced(collector, api_keys=str(file)) as server:
        assert server.generate(prompt="a", max_tokens=1).status_code == 401
        known = {"authorization": f"Bearer {key}"}
        server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=known)
        server.http.get("/health")
        ended(collector)
        time.sleep(0.1)
    assert len(collector.requests()) == 1
    assert key not in "".join(str(span) for span in collector.spans)


def test_a_collector_that_hangs_delays_no_request_and_not_the_end(collector, monkeypatch, caplog):
    monkeypatch.setattr("gradus.server.traces.export.FLUSH_S", 0.3)
    collector.hold.clear()
    with traced(collector) as server:
        server.generate(prompt="a", max_tokens=1)
        time.sleep(0.1)  # now the exporter waits for the collector
        began = time.monotonic()
        assert all(server.generate(prompt="a", max_tokens=1).status_code == 200 for _ in range(20))
        assert time.monotonic() - began < 5
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 10
    assert [line for line in caplog.messages if "could not be sent within" in line]
    assert not collector.spans


def test_a_collector_that_is_gone_costs_one_line_a_minute(collector, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("gradus.server.traces.export.FLUSH_S", 0.5)
    endpoint = "http://127.0.0.1:9"  # nothing listens at discard's port
    with running(otlp_traces_endpoint=endpoint) as server:
        for _ in range(5):
            assert server.generate(prompt="a", max_tokens=1).status_code == 200
            time.sleep(0.05)
        assert eventually(lambda: [line for line in caplog.messages if line.startswith("traces: ")])
    failures = [line for line in caplog.messages if line.startswith("traces: ") and "last spans" not in line]
    assert len(failures) == 1


def test_the_last_spans_are_sent_before_the_end(collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with traced(collector) as server:
        server.generate(prompt="a", max_tokens=1)
        time.sleep(0.1)
        assert not collector.spans
    assert len(collector.requests()) == 1


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_url", "complete"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://otel.lan/", "https://otel.lan/v1/traces"),
        ("http://[::1]:4318/custom/path", "http://[::1]:4318/custom/path"),
        ("grpc://localhost:4317", None),
        ("localhost:4318", None),
        ("http://user:password@localhost:4318", None),
        ("http://localhost:99999", None),
        ("http://", None),
    ],
)
def test_a_collectors_url_is_completed_or_refused(given_url, complete):
    assert traces_url(given_url) == complete
    if complete is None:
        with pytest.raises(ConfigError, match=re.escape("otlp_traces_endpoint takes an http or https URL")):
            ServerConfig(otlp_traces_endpoint=given_url)


def test_a_refused_url_shows_no_password():
    with pytest.raises(ConfigError) as refusal:
        ServerConfig(otlp_traces_endpoint="http://user:password@localhost:4318")
    assert "password" not in str(refusal.value)


def test_content_is_captured_only_where_there_are_traces():
    with pytest.raises(ConfigError, match="otlp_capture_content has no effect without otlp_traces_endpoint"):
        ServerConfig(otlp_capture_content=True)


def test_without_the_endpoint_nothing_of_it_is_imported():
    code = (
        "import sys\n"
        "from gradus.server.client import EngineClient\n"
        "from gradus.server.config import ServerConfig\n"
        "from gradus.server.http.app import create_app\n"
        "config = ServerConfig()\n"
        "create_app(EngineClient(config), config)\n"
        "ours = ('opentelemetry.sdk', 'opentelemetry.exporter', 'gradus.server.traces')\n"  # FastAPI imports the API
        "print([name for name in sys.modules if name.startswith(ours)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_missing_extra_is_refused_in_one_line(monkeypatch):
    from gradus.server.client import EngineClient
    from gradus.server.http.app import create_app

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    config = ServerConfig(otlp_traces_endpoint="http://localhost:4318")
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint needs the extra 'otel'"):
        create_app(EngineClient(config), config)
