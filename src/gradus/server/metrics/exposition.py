"""The table of metrics as Prometheus's text: under our names, and under vLLM's for its stock dashboards."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gradus.server.metrics.distribution import Distribution
from gradus.server.metrics.families import FAMILIES, Family, Source

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4  # its syntax covers every name here, and all scrapers read it


class Exposition(Collector):
    """Reads the measurements on each scrape. read: those of each model. alias: whether to add vLLM's names."""

    def __init__(self, read: Sequence[Callable[[], Source]], *, alias: bool) -> None:
        self._read = read
        self._alias = alias
        # a registry of its own: the library's global one would mix the servers of a process
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        if alias:
            ProcessCollector(registry=self._registry)  # process_*: of this process, not of the engine's

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Describe no metric in advance: the registry would otherwise collect all of them once to find their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        sources = [read() for read in self._read]
        for family in FAMILIES:
            if family.name:
                yield joined([own_metric(family, source) for source in sources])
        if not self._alias:
            return
        for family in FAMILIES:
            if family.vllm:
                yield joined([vllm_metric(family, source) for source in sources])
        yield http_requests(sources[0])  # which counts those of all models
        yield http_seconds(sources[0])


def joined(metrics: Sequence[Metric]) -> Metric:
    """Join the same metric of several models, which differ in their labels."""
    first = metrics[0]
    first.samples = [sample for metric in metrics for sample in metric.samples]
    return first


def own_metric(family: Family, source: Source) -> Metric:
    """Make a metric under our name."""
    value = family.value(source)
    labels = {"model": source.model}
    if isinstance(value, Distribution):
        return _histogram(f"gradus_{family.name}", family.help, labels, value, value.edges)
    return _numbers(f"gradus_{family.name}", family, labels, family.labels, value)


def http_requests(source: Source) -> Metric:
    """Make the counter that vLLM's dashboards take errors from, under the name of the library that vLLM has it from."""
    metric = CounterMetricFamily("http_requests", "HTTP requests.", labels=("handler", "method", "status"))
    for labels, count in source.meter.http_requests.items():
        metric.add_metric(labels, count)
    return metric


def http_seconds(source: Source) -> Metric:
    """Make the histogram of the same library, of the time until an answer has been sent whole."""
    name = "http_request_duration_seconds"
    metric = HistogramMetricFamily(name, "Time to answer an HTTP request.", labels=("handler", "method"))
    for labels, value in source.meter.http_seconds.items():
        metric.add_metric(labels, buckets=_buckets(value, value.edges), sum_value=value.sum)
    return metric


def vllm_metric(family: Family, source: Source) -> Metric:
    """Make a metric under vLLM's name, with its labels and its buckets."""
    value = (family.vllm_value or family.value)(source)
    labels = {"model_name": source.model, "engine": "0"}
    name = f"vllm:{family.vllm}"
    if isinstance(value, Distribution):
        edges = tuple(edge for edge in family.edges(source) if edge in value.edges)
        return _histogram(name, family.help, labels, value, edges)
    return _numbers(name, family, labels, family.vllm_labels or family.labels, value)


def _histogram(
    name: str, help: str, labels: Mapping[str, str], value: Distribution, edges: tuple[float, ...]
) -> Metric:
    metric = HistogramMetricFamily(name, help, labels=list(labels))
    metric.add_metric(list(labels.values()), buckets=_buckets(value, edges), sum_value=value.sum)
    return metric


def _buckets(value: Distribution, edges: tuple[float, ...]) -> list[tuple[str, float]]:
    return [(edge, float(count)) for edge, count in value.cumulative(edges)]


def _numbers(
    name: str,
    family: Family,
    labels: Mapping[str, str],
    more: tuple[str, ...],
    value: float | Mapping[tuple[str, ...], float],
) -> Metric:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    by_label = isinstance(value, Mapping)
    rows: Mapping[tuple[str, ...], float] = value if isinstance(value, Mapping) else {(): value}
    metric = make(name, family.help, labels=[*labels, *(more if by_label else ())])
    for extra, number in rows.items():
        metric.add_metric([*labels.values(), *extra], number)
    return metric
