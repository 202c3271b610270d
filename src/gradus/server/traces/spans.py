"""One span for each request that a protocol reads, and below it the phases of its samples: queue, prefill, decode.

    chat MODEL                                 from the route's call to the last byte written
      queue   ├──┤                             until the first step that has the sample
      prefill    ├──────┤                      until its first token
      decode            ├──────────────┤       until its end

The phases are the engine's own times, so they are added when the request has ended: until then a request costs two
objects. A parent that the client sends (W3C's `traceparent`) is taken over with its decision whether to sample, and one
that is malformed is ignored. All times of a span come from one reading of the clock and the monotonic clock's
difference, so a jump of the clock shifts a span but never changes its length.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.requests import ClientDisconnect
from starlette.types import Scope

import gradus
from gradus.engine.sequence import Timings
from gradus.server.api.errors import failure_of, problem_of
from gradus.server.config import ServerConfig
from gradus.server.exchange import Exchange
from gradus.server.failures import ClientGone, Unavailable
from gradus.server.results import Stream
from gradus.server.traces import content, names
from gradus.text.completion import Completion

log = logging.getLogger(__name__)

MOST_SAMPLES = 8  # of a request whose phases become spans
MOST_REASONS = 64
SECOND = 1_000_000_000  # in nanoseconds
PARENT = TraceContextTextMapPropagator()


class Tracer:
    """Makes the spans of one server's requests."""

    def __init__(self, provider: TracerProvider, config: ServerConfig) -> None:
        conventions = {"gradus.conventions": names.CONVENTIONS}
        self.spans = provider.get_tracer("gradus", gradus.__version__, attributes=conventions)
        self.captures = config.otlp_capture_content
        self.in_vllm = config.metrics_alias == "vllm"

    def request(self, path: str, scope: Scope, id: str, label: str) -> "RequestTrace":
        """Begin a request's span. id, label: the server's and the client's own."""
        operation = names.OPERATIONS[path]
        found: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": names.PROVIDER,
            "http.request.method": "POST",
            "http.route": path,
            "gradus.request.id": id,
        }
        if label:
            found["gradus.client.request.id"] = label
        if server := scope.get("server"):
            found |= {"server.address": server[0], "server.port": server[1]}
        began = time.time_ns()
        parent = parent_of(scope["headers"])
        span = self.spans.start_span(operation, parent, SpanKind.SERVER, found, start_time=began)
        return RequestTrace(self, span, operation, id, began)


def parent_of(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Read the parent's span from a request's headers. Returns an empty context without one, or with several."""
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in headers:
        if (key := name.decode("latin-1")) in found:
            found[key].append(value.decode("latin-1"))
    if len(found["traceparent"]) != 1:
        return Context()
    carrier = {"traceparent": found["traceparent"][0], "tracestate": ",".join(found["tracestate"])}
    return PARENT.extract(carrier, Context())


class Ended(NamedTuple):
    """A sample that the engine has ended. text: "" unless content is captured."""

    place: tuple[int, int]
    reason: str
    timings: Timings
    text: str
    failure: Exception | None


class RequestTrace:
    """The span of one request, which ends with the `with` block. Whatever goes wrong here ends no request."""

    __slots__ = ("_asked", "_began", "_ended", "_id", "_monotonic", "_operation", "_span", "_stream", "_tracer")

    def __init__(self, tracer: Tracer, span: Span, operation: str, id: str, began: int) -> None:
        self._tracer = tracer
        self._operation = operation
        self._span = span
        self._id = id
        self._began, self._monotonic = began, time.monotonic()
        self._asked: Exchange | None = None
        self._stream: Stream | None = None
        self._ended: list[Ended] = []

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal, for the log."""
        return format(self._span.get_span_context().trace_id, "032x")

    def follow(self, asked: Exchange, stream: Stream, model: str) -> None:
        """Note the requests that an engine gets, if the span is sampled. model: the name of the one that serves them,
        which is known once the body has been read."""
        if self._span.is_recording():
            self._span.update_name(f"{self._operation} {model}")
            self._span.set_attributes({"gen_ai.request.model": model, "gen_ai.response.model": model})
            self._asked, self._stream = asked, stream
            stream.on_end = self._note

    def _note(self, completion: Completion) -> None:
        place = completion.prompt_index, completion.index
        text = completion.text[: content.LARGEST] if self._tracer.captures else ""
        failure = failure_of(completion)
        self._ended.append(Ended(place, completion.finish_reason, completion.timings, text, failure))

    def __enter__(self) -> "RequestTrace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end = self._at(time.monotonic())
        try:
            if self._span.is_recording():
                self._finish(error)
        except Exception:
            log.exception("request %s: its span could not be written", self._id)
        finally:
            self._span.end(end)

    def _at(self, monotonic: float) -> int:
        """Convert seconds of `time.monotonic` to nanoseconds since the epoch."""
        return self._began + int((monotonic - self._monotonic) * SECOND)

    def _finish(self, error: BaseException | None) -> None:
        """Add what is known only now."""
        self._ended.sort(key=lambda ended: ended.place)
        stream = self._stream
        status = 200
        cause = error or (stream and stream.error) or next((one.failure for one in self._ended if one.failure), None)
        if cause is not None:
            name, failed, code = outcome(cause)
            status = code if error is not None else status
            self._span.set_attribute("error.type", name)
            if failed:
                self._span.set_status(Status(StatusCode.ERROR, name))
        self._span.set_attribute("http.response.status_code", status)
        if stream is not None and self._asked is not None:
            self._describe(self._asked, stream)
            for number, ended in enumerate(self._ended[:MOST_SAMPLES]):
                self._phases(stream.tally.arrived, ended.timings, number if stream.samples > 1 else None)

    def _describe(self, asked: Exchange, stream: Stream) -> None:
        request = next(iter(stream.requests.values()), None)
        timings = self._ended[0].timings if self._ended else None
        reasons = [ended.reason for ended in self._ended] or list(stream.tally.finished)
        found: dict[str, Any] = {"gen_ai.request.stream": asked.stream, "gradus.samples": stream.samples}
        found |= {} if request is None else names.of_request(request)
        found |= names.of_answer(stream.tally, reasons[:MOST_REASONS])
        if self._tracer.in_vllm:
            found |= names.in_vllm(stream.tally, request, timings, self._id)
        if self._tracer.captures:
            found["gen_ai.input.messages"] = content.prompts(asked.asks)
            found["gen_ai.output.messages"] = content.answers((one.text, one.reason) for one in self._ended)
        self._span.set_attributes(found)

    def _phases(self, arrived: float, timings: Timings, number: int | None) -> None:
        """Add a sample's phases. number: among several."""
        first = timings.total_s if timings.ttft_s is None else timings.ttft_s
        self._phase("queue", arrived, 0.0, timings.queued_s, number)
        if timings.queued_s < timings.total_s:
            self._phase("prefill", arrived, timings.queued_s, first, number)
        if timings.ttft_s is not None:
            self._phase("decode", arrived, first, timings.total_s, number, timings.tokens)

    def _phase(
        self, name: str, arrived: float, begin: float, end: float, number: int | None, tokens: int | None = None
    ) -> None:
        found = {"gradus.sample": number, "gen_ai.usage.output_tokens": tokens}
        span = self._tracer.spans.start_span(
            name,
            set_span_in_context(self._span, Context()),
            SpanKind.INTERNAL,
            {name: value for name, value in found.items() if value is not None},
            start_time=self._at(arrived + begin),
        )
        span.end(self._at(arrived + end))


def outcome(error: BaseException) -> tuple[str, bool, int]:
    """Name an error, and say whether it is the server's fault, and its HTTP status. A client that leaves or does not
    read has ended its own request, and a refused one is its client's fault: the convention for servers leaves the
    status of their spans unset."""
    match error:
        case ClientGone() | ClientDisconnect():
            return "client_gone", False, 499
        case Unavailable(kind="stalled"):
            return "stalled", False, 499
        case asyncio.CancelledError():
            return "cancelled", True, 503
    problem = problem_of(error if isinstance(error, Exception) else RuntimeError())
    return problem.kind, problem.status >= 500, problem.status
