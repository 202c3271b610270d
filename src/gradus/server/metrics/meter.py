"""The front end's measurements of all requests: times, sizes and endings.

`Meter` is called once per report of the engine with all its deltas, once per request that enters, and once per stream
that closes. Per delta it does two look-ups and a few additions. Samples that also had a token in the report before have
waited equally long, so they update a histogram together, once per report.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from gradus.engine.metrics import Metrics
from gradus.errors import RequestError
from gradus.server.failures import ClientGone, RequestTimeout, Unavailable
from gradus.server.measures import SampleTally, Tally
from gradus.server.metrics.distribution import Distribution, edges, merged, steps_1_2_5
from gradus.server.results import Stream
from gradus.text.completion import Completion, Delta

# vLLM's edges, from which its dashboards compute quantiles
VLLM_TTFT = edges(".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
VLLM_TOKEN = edges(".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80")
VLLM_REQUEST = edges(".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
VLLM_STEP_TOKENS = edges("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")

FINE = edges(".0005 .001 .002 .003 .004 .005 .006 .007 .008 .009 .01 .0125 .015 .0175 .02 .025 .03 .04 .05 .075")
"""Edges in seconds where vLLM has few or none: a token of a small model takes a millisecond."""

SECONDS = merged(FINE, VLLM_TTFT, VLLM_TOKEN, VLLM_REQUEST)
TOKENS = steps_1_2_5(1_000_000)
STEP_TOKENS = merged(VLLM_STEP_TOKENS, steps_1_2_5(100_000))
SEQUENCES = steps_1_2_5(10_000)
SAMPLES = (1, 2, 5, 10, 20)  # vLLM's
HTTP = (0.1, 0.5, 1)  # of the library that vLLM has its HTTP metrics from


NO_SAMPLES: dict[int, SampleTally] = {}


class Meter:
    """All measurements of one server. For its event loop only.

    price_per_hour: the device's. Endings are counted by sample, as in /stats: `entered` equals the sum of `finished`
    once all have ended. A sample that ends without a last output of the engine counts as "cancelled" (its client left),
    "timeout", "refused" (late, because it could never be served), or "error".
    """

    def __init__(self, price_per_hour: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.price_per_hour = price_per_hour
        self.entered = 0
        self.finished: Counter[str] = Counter()
        self.by_key = ByKey()
        self.http_requests: Counter[tuple[str, ...]] = Counter()  # by route, method, and class of status: 2xx
        self.http_seconds: dict[tuple[str, ...], Distribution] = {}  # by route and method
        self.ttft = Distribution(SECONDS)
        self.inter_token = Distribution(SECONDS)
        self.per_token = Distribution(SECONDS)
        self.total = Distribution(SECONDS)
        self.queued = Distribution(SECONDS)
        self.prefill = Distribution(SECONDS)
        self.decode = Distribution(SECONDS)
        self.inference = Distribution(SECONDS)
        self.samples = Distribution(SAMPLES)
        self.step = Distribution(SECONDS)
        self.prompt_tokens = Distribution(TOKENS)
        self.computed_tokens = Distribution(TOKENS)
        self.generated_tokens = Distribution(TOKENS)
        self.max_tokens = Distribution(TOKENS)
        self.step_tokens = Distribution(STEP_TOKENS)
        self.step_sequences = Distribution(SEQUENCES)
        self._clock = clock
        self._open: dict[str, Stream] = {}
        self._samples: dict[str, dict[int, SampleTally]] = {}  # samples of _open with tokens that have not ended
        self._last_tokens = 0.0  # when the last report with tokens came
        self._metrics: Metrics | None = None  # the engine's newest

    def enter(self, stream: Stream) -> None:
        self.entered += stream.samples
        for name in stream.ids:
            self._open[name] = stream
            self._samples[name] = {}

    def sample(self, request_id: str, index: int) -> SampleTally | None:
        """Find a sample that has had tokens and has not ended."""
        return self._samples.get(request_id, NO_SAMPLES).get(index)

    def report(
        self, deltas: Sequence[Delta], step_s: float, metrics: Metrics | None, plain: Sequence[SampleTally] = ()
    ) -> None:
        """Add one report of the engine, before its results are delivered.

        deltas: its decoded outputs. plain: the samples with one more token, but without a delta. step_s: the step's
        duration; 0 without a step. metrics: the engine's, if the report has them.
        """
        now = self._clock()
        self._add(deltas, plain, now)
        if step_s:
            self.step.observe(step_s)
        if metrics is not None:
            self._observe_steps(metrics)
        for delta in deltas:
            if delta.completion is not None and (stream := self._open.get(delta.request_id)):
                self._complete(stream, delta.completion, now)

    def _add(self, deltas: Sequence[Delta], plain: Sequence[SampleTally], now: float) -> None:
        """Count tokens, and the times between them. Most samples had their last token with the last report.

        Several tokens of one step share the time since the step before.
        """
        before, steady, any_tokens = self._last_tokens, 0, bool(plain)
        for each in plain:
            if each.last == before:
                steady += 1
            else:
                self.inter_token.observe(now - each.last)
            each.last = now
            each.tally.generated += 1
        for delta in deltas:
            tokens = len(delta.token_ids)
            if not tokens or (samples := self._samples.get(delta.request_id)) is None:
                continue
            any_tokens = True
            if (sample := samples.get(delta.index)) is None:
                self._begin(delta, now)
                continue
            if tokens == 1 and sample.last == before:
                steady += 1
            else:
                self.inter_token.observe((now - sample.last) / tokens, tokens)
            sample.last = now
            sample.tally.generated += tokens
        if any_tokens:
            self._last_tokens = now
        if steady:
            self.inter_token.observe(now - before, steady)

    def _begin(self, delta: Delta, now: float) -> None:
        """Note a sample's first tokens."""
        tally = self._open[delta.request_id].tally
        self._samples[delta.request_id][delta.index] = SampleTally(now, tally)
        tally.generated += len(delta.token_ids)
        self.ttft.observe(now - tally.arrived)
        if tally.ttft_s is None:
            tally.ttft_s = now - tally.arrived

    def _observe_steps(self, metrics: Metrics) -> None:
        """Observe the mean size of the steps since the last snapshot of the engine's metrics."""
        before, self._metrics = self._metrics, metrics
        if before is not None and (steps := metrics.steps - before.steps) > 0:
            self.step_tokens.observe((useful_rows(metrics) - useful_rows(before)) / steps, steps)
            self.step_sequences.observe((metrics.batch_total - before.batch_total) / steps, steps)

    def _complete(self, stream: Stream, completion: Completion, now: float) -> None:
        """Count a sample that the engine ended."""
        tally, timings = stream.tally, completion.timings
        self._samples[completion.request_id].pop(completion.index, None)
        self._count(stream, completion.finish_reason)
        tally.cached_tokens += completion.cached_tokens if completion.index == 0 else 0
        tally.queued_s = max(tally.queued_s or 0.0, timings.queued_s)
        tally.total_s = now - tally.arrived
        self.total.observe(tally.total_s)
        self.queued.observe(timings.queued_s)
        self.generated_tokens.observe(len(completion.token_ids))
        self.inference.observe(timings.total_s - timings.queued_s)
        if timings.ttft_s is not None:
            self.prefill.observe(timings.ttft_s - timings.queued_s)
            self.decode.observe(timings.total_s - timings.ttft_s)
        if timings.decode_tokens_per_s:
            self.per_token.observe(1 / timings.decode_tokens_per_s)
        if completion.index == 0:
            self.prompt_tokens.observe(completion.prompt_tokens)
            self.computed_tokens.observe(completion.prompt_tokens - completion.cached_tokens)
            request = stream.requests[completion.request_id]
            self.max_tokens.observe(request.max_tokens)
            self.samples.observe(request.params.n)

    def _count(self, stream: Stream, reason: str, samples: int = 1) -> None:
        self.finished[reason] += samples
        stream.tally.finished[reason] += samples

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request whose answer has ended. seconds: since it arrived."""
        self.http_requests[route, method, f"{status // 100}xx"] += 1
        self.http_seconds.setdefault((route, method), Distribution(HTTP)).observe(seconds)

    def leave(self, stream: Stream, error: Exception | None) -> None:
        """Count the samples of a stream that closes before the engine ended them."""
        tally = stream.tally
        for name in stream.ids:
            self._open.pop(name, None)
            self._samples.pop(name, None)
        if tally.total_s is None:
            tally.total_s = self._clock() - tally.arrived
        if left := tally.samples - tally.finished.total():
            self._count(stream, reason_of(error), left)

    def cost_of(self, device_s: float) -> float:
        """Convert seconds of the device to money; 0 without a price per hour."""
        return device_s * (self.price_per_hour or 0.0) / 3600


class ByKey:
    """Totals per API key; "" is the name of a client without one. requests: by key, route and status."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, ...]] = Counter()
        self.prompt_tokens: Counter[tuple[str, ...]] = Counter()
        self.generated_tokens: Counter[tuple[str, ...]] = Counter()
        self.device_s: dict[tuple[str, ...], float] = {}

    def add(self, key: str, route: str, status: int, tally: Tally | None) -> None:
        """Add an HTTP request that has ended. tally: None if it generated nothing."""
        self.requests[key, route, str(status)] += 1
        if tally is not None:
            self.prompt_tokens[key,] += tally.prompt_tokens
            self.generated_tokens[key,] += tally.generated
            self.device_s[key,] = self.device_s.get((key,), 0.0) + tally.device_s


def useful_rows(metrics: Metrics) -> int:
    """Count the rows computed since the start, except padding and rejected drafts."""
    drafts = metrics.speculation
    rejected = 0 if drafts is None else sum(drafts.drafted) - sum(drafts.accepted)
    return metrics.rows - metrics.padding_rows - rejected


def reason_of(error: Exception | None) -> str:
    """Name the ending of a sample that the engine did not end itself."""
    match error:
        case ClientGone():
            return "cancelled"
        case RequestTimeout():
            return "timeout"
        case RequestError():
            return "refused"
        case Unavailable(kind="draining" | "stalled"):
            return "cancelled"
    return "error"
