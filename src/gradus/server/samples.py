"""The running samples: reports of the engine become text, and the text goes to the streams.

The front end decodes here, because the engine's side knows only token ids.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs
from gradus.engine.request import unpacked_ids
from gradus.engine.sequence import Output
from gradus.server.engine.messages import Report, unpacked, unpacked_seconds
from gradus.server.failures import RequestFailed
from gradus.server.measures import Counts, SampleTally
from gradus.server.results import Lane, Stream
from gradus.text.completion import Delta
from gradus.text.front_end import FrontEnd
from gradus.text.transcript import Transcript

log = logging.getLogger(__name__)

LONGEST_ERROR = 500  # characters of a sample's error in the log


@dataclass(slots=True)
class Sample:
    """A running sample: the decoder of its tokens, and the stream for its text.

    lane: for its plain tokens, while it is open; opened: the one that was opened first. device_s: its share of the
    device.
    """

    front_end: FrontEnd
    transcript: Transcript
    stream: Stream
    lane: Lane | None = None
    opened: Lane | None = None
    device_s: float = 0.0

    def charge(self, device_s: float) -> None:
        """Record its share so far, in seconds; its body's tally adds up all samples'."""
        self.stream.tally.device_s += device_s - self.device_s
        self.device_s = device_s


@dataclass(slots=True)
class News:
    """One report's deltas, and the streams with something to deliver, in order of arrival.

    plain: the samples with one more token in their lanes.
    """

    deltas: list[Delta] = field(default_factory=list)
    plain: list[SampleTally] = field(default_factory=list)
    streams: dict[Stream, None] = field(default_factory=dict)


class Samples:
    """The samples by handle, from the request's submission to the sample's last output. For one event loop only.

    counts: where samples that timed out are counted. tally: finds that of a sample with tokens. cancel: has the engine
    end a stream's requests. fail: does so too, and ends the stream with an error.
    """

    def __init__(
        self,
        counts: Counts,
        tally: Callable[[str, int], SampleTally | None],
        cancel: Callable[[Stream], None],
        fail: Callable[[Stream, Exception], None],
    ) -> None:
        self._counts = counts
        self._tally = tally
        self._cancel = cancel
        self._fail = fail
        self._samples: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def find(self, handle: int) -> Sample | None:
        return self._samples.get(handle)

    def open(self, handle: int, transcripts: Sequence[Transcript], stream: Stream, front_end: FrontEnd) -> None:
        """Add a request's samples. handle: the first one's. front_end: decodes into the transcripts."""
        for sample, transcript in enumerate(transcripts):
            self._samples[handle + sample] = Sample(front_end, transcript, stream)

    def close(self, handle: int, samples: int) -> None:
        """Forget a request's samples; some may have ended. handle: the first one's."""
        for sample in range(samples):
            self._samples.pop(handle + sample, None)

    def read(self, report: Report) -> News:
        """Decode a report, and give each stream its deltas. The caller delivers them."""
        news = News()
        if report.width == 1 and not report.logprobs:
            self._read_tokens(report, news)
        else:
            self._read_rows(report, news)
        for other in report.others:
            if sample := self._samples.get(other.handle):
                if other.timings is not None:
                    sample.charge(other.timings.device_s)
                self._read(sample, other.output(sample.transcript.request.id, sample.transcript.index), news)
                if other.finish_reason is not None:
                    self._samples.pop(other.handle, None)
        for handle, seconds in zip(unpacked(report.charged), unpacked_seconds(report.seconds), strict=True):
            if sample := self._samples.get(handle):
                sample.charge(seconds)
        return news

    def _read_tokens(self, report: Report, news: News) -> None:
        """Read one plain token per sample, with as little work as possible: this path dominates on a busy server."""
        samples, plain, streams = self._samples, news.plain, news.streams
        for handle, token in zip(unpacked(report.handles), unpacked_ids(report.tokens), strict=True):
            sample = samples.get(handle)
            if sample is None:  # cancelled meanwhile
                continue
            lane = sample.lane
            if lane is None or (middle := lane.written[token]) is None:
                self._read_token(sample, token, news)
                continue
            lane.transcript.unread.append(token)
            lane.new.append(middle)
            if len(lane.new) == 1:
                sample.stream.push_lane(lane)
                streams[sample.stream] = None
            plain.append(lane.tally)

    def _read_token(self, sample: Sample, token: int, news: News) -> None:
        """Read a token outside a lane, and see whether the next ones may use one."""
        stream, transcript = sample.stream, sample.transcript
        delta = transcript.plain(token) if sample.lane is None else None
        if delta is None:
            self._read(sample, Output(transcript.request.id, transcript.index, (token,)), news)
        else:
            stream.push(delta)
            news.deltas.append(delta)
            news.streams[stream] = None
        if stream.templates and transcript.simple:
            sample.lane = sample.opened = sample.opened or self._lane(sample)

    def _lane(self, sample: Sample) -> Lane | None:
        transcript, stream = sample.transcript, sample.stream
        template = stream.templates.get((transcript.prompt_index, transcript.index))
        tally = self._tally(transcript.request.id, transcript.index)
        if template is None or tally is None:
            return None
        written = sample.front_end.written(template.write)
        return Lane(transcript, tally, template.before, written, template.after)

    def _read_rows(self, report: Report, news: News) -> None:
        """Read rows of accepted drafts, or of tokens with log-probabilities."""
        tokens, width = unpacked_ids(report.tokens), report.width
        for row, handle in enumerate(unpacked(report.handles)):
            if (sample := self._samples.get(handle)) is None:
                continue
            kept = tuple([token for token in tokens[row * width : (row + 1) * width] if token >= 0])
            logprobs = tuple(report.logprobs[row * width : row * width + len(kept)])
            scores = Logprobs(logprobs) if any(logprobs) else NO_LOGPROBS
            self._read(sample, Output(sample.transcript.request.id, sample.transcript.index, kept, scores), news)

    def _read(self, sample: Sample, output: Output, news: News) -> None:
        stream = sample.stream
        if sample.lane is not None:
            stream.end_lanes()  # while the transcript has their tokens
            sample.lane = None
        try:
            delta = sample.front_end.read_sample(sample.transcript, output)
        except Exception:  # a bug that ends this one answer; the report has others
            log.exception("%s: an output could not be read", stream)
            self._fail(stream, RequestFailed())
            return
        reason = delta.completion and delta.completion.finish_reason
        self._counts.timed_out += reason == "timeout"
        if delta.completion is not None and reason == "error":
            log.error("%s: sample %d failed: %s", stream, output.index, one_line(delta.completion.error))
        stream.push(delta)
        news.deltas.append(delta)
        news.streams[stream] = None
        if reason == "error" and stream.unfinished and not stream.apart:
            self._cancel(stream)  # the answer is this error, whatever the other samples say


def one_line(error: str | None) -> str:
    """Shorten an error of the engine's for the log."""
    return " ".join((error or "without a reason").split())[:LONGEST_ERROR]
