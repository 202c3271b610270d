"""Spans on their way to a collector: OTLP over HTTP, in batches, on a thread of the SDK's own.

The event loop only appends a span to a queue. When the collector is slow or gone, the queue fills, and the oldest spans
are dropped: no request waits. All that the packages have to say comes out as one line a minute.

The standard variables of the environment keep their meaning: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, the
OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS (a collector's credentials), and OTEL_BSP_* (batches).
"""

import asyncio
import logging
import threading
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import gradus
from gradus.server.addresses import traces_url
from gradus.server.config import ServerConfig
from gradus.server.logs import Sparing, printable

log = logging.getLogger(__name__)

FLUSH_S = 5.0  # for the last spans, when the server ends
EVERY_S = 60.0
LONGEST = 300  # characters of a line
MOST_WITH_CONTENT, BATCH_WITH_CONTENT = 256, 64  # spans with texts in the queue, and sent at once: each may have 64 kB


class Quiet(logging.Handler):
    """Takes the packages' own log, which has a line for each attempt, and keeps one line a minute of it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._sparing = Sparing(log, EVERY_S)

    def emit(self, record: logging.LogRecord) -> None:
        self._sparing.warning(f"traces: {printable(record.getMessage(), LONGEST)}")


class Export:
    """The provider of spans, whose queue a thread empties. Close it once no request runs."""

    def __init__(self, config: ServerConfig) -> None:
        assert config.otlp_traces_endpoint is not None
        packages = logging.getLogger("opentelemetry")
        packages.propagate, packages.handlers = False, [Quiet()]
        if config.otlp_capture_content:
            log.warning("writing prompts and answers to spans (--otlp-capture-content)")
        exporter = OTLPSpanExporter(traces_url(config.otlp_traces_endpoint))
        most, batch = (MOST_WITH_CONTENT, BATCH_WITH_CONTENT) if config.otlp_capture_content else (None, None)
        self.provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(exporter, most, max_export_batch_size=batch))

    async def close(self) -> None:
        """Send the last spans, for FLUSH_S seconds at most. A thread whose collector hangs is left behind."""
        ending = threading.Thread(target=self.provider.shutdown, name="traces", daemon=True)
        ending.start()
        end = time.monotonic() + FLUSH_S
        while ending.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if ending.is_alive():
            log.warning("traces: the last spans could not be sent within %g s", FLUSH_S)


def _resource() -> Resource:
    """Describe this server. The environment has the last word, on the service's name as well."""
    ours = Resource({"service.name": "gradus", "service.version": gradus.__version__})
    return Resource.create({}).merge(ours).merge(OTELResourceDetector().detect())
