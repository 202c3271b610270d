"""The metrics read from a sample, by the field's names, and the one format of each.

A sample is the record of one run of one workload: see `measure.drive.Run.sample`. No torch here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.bench.predict.prediction import Prediction
from gradus.bench.statistics import median, significant

Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """heading: with its unit. read: its value in a sample, or None. floor: its value in a prediction."""

    heading: str
    read: Callable[[Sample], float | None]
    more_is_better: bool = False
    floor: Callable[[Mapping[str, Any]], float | None] = lambda prediction: None

    def times_floor(self, measured: float, floor: float) -> float:
        """Measured over predicted, as a factor: 1 is the floor itself."""
        return floor / measured if self.more_is_better else measured / floor


def _quantile(name: str, key: str) -> Callable[[Sample], float | None]:
    return lambda sample: sample.get(name, {}).get(key)


def _rate(count: str) -> Callable[[Sample], float | None]:
    return lambda sample: sample[count] / sample["seconds"] if sample.get(count) is not None else None


def _scaled(key: str, factor: float) -> Callable[[Sample], float | None]:
    return lambda sample: None if sample.get(key) is None else sample[key] * factor


def _padding(sample: Sample) -> float | None:
    return 100 * sample["padding_rows"] / sample["rows"] if sample.get("rows") else None


def _hit(sample: Sample) -> float | None:
    return 100 * sample.get("cached_tokens", 0) / sample["prompt_tokens"] if sample.get("prompt_tokens") else None


def _tokens_a_step(sample: Sample) -> float | None:
    return sample["output_tokens"] / sample["steps"] if sample.get("steps") else None


def _sequence_rate(sample: Sample) -> float | None:
    return 1e3 * sample.get("tokens_at_once", 1) / sample["itl_ms"]["p50"] if sample.get("itl_ms") else None


METRICS: dict[str, Metric] = {
    "output_tok_s": Metric(
        "tok/s",
        _rate("output_tokens"),
        True,
        floor=lambda prediction: prediction["output_tokens"] / prediction["seconds"],
    ),
    "prompt_tok_s": Metric(
        "tok/s in",
        _rate("prompt_tokens"),
        True,
        floor=lambda prediction: prediction["prompt_tokens"] / prediction["seconds"],
    ),
    "decode_tok_s": Metric(
        "tok/s after the last first token",
        lambda sample: sample["decode_tokens"] / sample["decode_s"] if sample.get("decode_s") else None,
        True,
    ),
    "seconds": Metric("seconds", _scaled("seconds", 1), floor=lambda prediction: prediction["seconds"]),
    "answer_ms": Metric("ms to the answer", _scaled("seconds", 1e3), floor=lambda found: 1e3 * found["seconds"]),
    "ttft_ms": Metric("TTFT ms", _quantile("ttft_ms", "p50"), floor=lambda prediction: 1e3 * prediction["ttft_p50"]),
    "ttft_ms_p99": Metric("TTFT p99 ms", _quantile("ttft_ms", "p99")),
    "itl_ms": Metric(
        "ITL ms",
        _quantile("itl_ms", "p50"),
        floor=lambda prediction: None if prediction["itl_p50"] is None else 1e3 * prediction["itl_p50"],
    ),
    "itl_ms_p95": Metric("ITL p95 ms", _quantile("itl_ms", "p95")),
    "itl_ms_p99": Metric("ITL p99 ms", _quantile("itl_ms", "p99")),
    "itl_ms_max": Metric("worst gap ms", _quantile("itl_ms", "p100")),
    "tokens_at_once": Metric("tokens at once", lambda sample: sample.get("tokens_at_once", 1), True),
    "tpot_ms": Metric("TPOT ms", _quantile("tpot_ms", "p50")),
    "e2e_ms": Metric("latency ms", _quantile("e2e_ms", "p50"), floor=lambda prediction: 1e3 * prediction["e2e_p50"]),
    "e2e_ms_p99": Metric("latency p99 ms", _quantile("e2e_ms", "p99")),
    "sequence_tok_s": Metric(
        "tok/s per sequence",
        _sequence_rate,
        True,
        floor=lambda prediction: None if prediction["itl_p50"] is None else 1 / prediction["itl_p50"],
    ),
    "memory_share": Metric("memory's rate", _scaled("memory_share", 1)),
    "requests_s": Metric("requests/s", _rate("completed"), True),
    "goodput": Metric("goodput/s", _rate("good"), True),
    "padding": Metric("padding rows", _padding),
    "host_us": Metric("host µs per step", _scaled("host_us", 1)),
    "idle_us": Metric("GPU idle µs per step", _quantile("idle_us", "mean")),
    "rows": Metric("rows", _scaled("rows", 1)),
    "steps": Metric("steps", _scaled("steps", 1)),
    "tokens_a_step": Metric("tokens per step", _tokens_a_step, True),
    "peak_mb": Metric("peak MB", _scaled("peak_bytes", 1e-6)),
    "cache_mb": Metric("cache held MB", _scaled("cache_bytes", 1e-6)),
    "waste": Metric("of it empty", _scaled("cache_waste", 1)),
    "hit": Metric("prompt tokens hit", _hit),
    "preemptions": Metric("preemptions", lambda sample: sample.get("preemptions", 0)),
    "ttft_ms_longest": Metric("TTFT of the longest prompts ms", _quantile("ttft_ms_longest", "p50")),
}

PERCENT = {"padding", "waste", "hit", "memory_share"}


@dataclass(frozen=True, slots=True)
class Spread:
    """The repeats' median, smallest and largest value."""

    median: float
    low: float
    high: float


def spread(samples: list[dict[str, Any]], metric: str) -> Spread | None:
    """Summarize a metric over the repeats; None if no repeat has it."""
    found = values(samples, metric)
    return Spread(median(found), min(found), max(found)) if found else None


def values(samples: list[dict[str, Any]], metric: str) -> list[float]:
    """A metric of each repeat that has it."""
    return [value for sample in samples if (value := METRICS[metric].read(sample)) is not None]


def middle(samples: list[dict[str, Any]], metric: str, unit: str = "") -> str:
    """Format the median of a metric, as in "12.3"; "" if no repeat has it."""
    found = spread(samples, metric)
    return "" if found is None else shown(found.median, metric) + unit


def ranged(samples: list[dict[str, Any]], metric: str) -> str:
    """Format a metric as `bracketed` does; "–" if no repeat has it."""
    found = values(samples, metric)
    return bracketed(found, lambda value: shown(value, metric)) if found else "–"


def bracketed(values: Sequence[float], show: Callable[[float], str], unit: str = "") -> str:
    """Format the median, and the smallest and the largest where they differ: "1.2× (1.1–1.3)"."""
    middle, low, high = (show(value) for value in (median(values), min(values), max(values)))
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low}–{high})"


def percent(share: float) -> str:
    """Format a share of one: "12 %"."""
    return f"{100 * share:.0f} %"


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction in the form of results.json."""
    return {
        name: significant(value) if isinstance(value := getattr(prediction, name), float) else value
        for name in Prediction.__slots__
    }


def shown(value: float, metric: str = "") -> str:
    """Format with three significant digits and no exponent: 0.0123, 1.23, 12.3, 123, 1,235."""
    if metric in PERCENT:
        return f"{value:.0f} %" if value == 0 or value >= 10 else f"{value:.1f} %"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{significant(value, 3):.10f}".rstrip("0").rstrip(".") if value else "0"
