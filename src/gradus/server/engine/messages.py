"""The messages between the front end and the engine: commands one way, reports the other.

    front end ── Submit, Cancel, Ping, Stop ──▶ engine
    front end ◀── Loading, Loaded, Report, … ───── engine

All are plain data, so they can be sent to another process (wire.py) as well as handed to another thread. The front end
gives each sample an integer handle: a request of n samples takes n consecutive handles, and all later messages use
them. A step of hundreds of decodes reports its tokens in columns of numbers, without an object per token. This module
does not import torch.
"""

import os
import time
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from gradus import errors
from gradus.engine.logprobs import Logprobs
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams, unpacked_ids
from gradus.engine.sequence import Output, Timings
from gradus.errors import GradusError, RequestError
from gradus.loading.progress import Stage


class Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    """The base of all messages: sent as arrays, and untracked by the garbage collector, as none can refer to itself."""


# -- to the engine -----------------------------------------------------------------------------------------------------


class Submit(Message):
    """Run a request. handle: its first sample's. sent: the time of sending in seconds of `time.monotonic`, which all
    processes of a machine share; its limits include the wait for the engine since then."""

    handle: int
    id: str
    prompt: bytes
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_ids: tuple[int, ...]
    scheduling: SchedulingParams
    sent: float

    @classmethod
    def of(cls, handle: int, request: Request, sent: float | None = None) -> "Submit":
        return cls(
            handle=handle,
            id=request.id,
            prompt=request.packed,
            params=request.params,
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop_ids=tuple(sorted(request.stop_ids)),
            scheduling=request.scheduling,
            sent=time.monotonic() if sent is None else sent,
        )

    def request(self) -> Request:
        return Request(
            id=self.id,
            prompt=unpacked_ids(self.prompt),
            packed=self.prompt,
            params=self.params,
            max_tokens=self.max_tokens,
            seed=self.seed,
            stop_ids=frozenset(self.stop_ids),
            scheduling=self.scheduling,
        )


class Cancel(Message):
    """End a request, or one of its samples; it may have ended already. `reason` becomes its finish_reason.

    handle: of the request's first sample.
    """

    handle: int
    reason: str
    index: int | None = None


class Ping(Message):
    """Report, even if there is nothing to do: a sign of life."""


class Stop(Message):
    """Leave the loop after the commands before this one. Running requests are abandoned."""


class Watch(Message):
    """Begin to post `Watched`, with everything in the first one; or end it. on: which of the two."""

    on: bool


Command = Submit | Cancel | Ping | Stop | Watch

# -- from the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A description of the engine: the event loop sees nothing else of it.

    engine: the phase's name, or "final"; phase: None for the final engine.
    settings: max_sequences, and the settings of cache and scheduler that the engine uses.
    default_sampling: values of sampling fields that a request leaves out. sampling_sources: where each comes from.
    weight_bytes: what the model's weights take in memory; 0 if unknown.
    sessions: how many sequences run at once, by their tokens as text; {} if the engine does not say.
    kept_sessions: how many evicted ones host memory keeps, likewise; {} without host_cache.
    """

    model: str
    engine: str
    phase: str | None
    device: str
    dtype: str
    limits: ModelLimits
    settings: dict[str, Any]
    default_sampling: dict[str, int | float] = field(default_factory=dict)
    sampling_sources: dict[str, str] = field(default_factory=dict)
    weight_bytes: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    kept_sessions: dict[str, int] = field(default_factory=dict)

    def stats(self) -> dict[str, Any]:
        """Return the fields for /stats, with the limits merged into the others."""
        found = asdict(self)
        limits = found.pop("limits")
        return found | {name: limits[name] for name in ("context_length", "vocab_size")}


class Failure(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An exception, as data.

    kind: its class in `gradus.errors`; for a bug, its type's name.
    message: the complete text for the user; None for a bug, whose details are only in the log.
    param, limit, got: the fields of a RequestError.
    """

    kind: str
    message: str | None = None
    param: str = ""
    limit: str = ""
    got: bool | int | float | str | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        if isinstance(error, OSError):  # the system's: a file is missing, a disk is full
            where = f": {os.path.basename(error.filename)}" if isinstance(error.filename, str) else ""
            return cls(GradusError.__name__, f"{error.strerror or error}{where}")
        if not isinstance(error, GradusError):
            return cls(type(error).__name__)
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
        if isinstance(error, RequestError):
            got = error.got if isinstance(error.got, bool | int | float | str | None) else repr(error.got)
            return cls(kind, str(error), error.param, error.limit, got)
        return cls(kind, str(error))

    @property
    def why(self) -> str:
        """Why it happened, as far as clients may know, in one line."""
        return self.message or f"an internal error ({self.kind}); the log has the details"

    def error(self) -> GradusError | None:
        """Recreate the exception; None for a bug."""
        if self.message is None:
            return None
        if self.kind == RequestError.__name__:
            return RequestError(self.message, param=self.param, limit=self.limit, got=self.got)
        found: GradusError = getattr(errors, self.kind)(self.message)
        return found


class Loading(Message):
    """The engine is being loaded, and has come to this stage."""

    stage: Stage


class Loaded(Message):
    """The engine is loaded and takes commands. metrics: their initial values."""

    info: ModelInfo
    metrics: Metrics


class LoadFailed(Message):
    """The engine could not be loaded. This is its last message."""

    failure: Failure


class SampleOutput(msgspec.Struct, array_like=True, gc=False):
    """An `Output` with more than plain tokens. logprobs, prompt_logprobs: bytes per token, as in `Logprobs`."""

    handle: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[bytes, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    timings: Timings | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, handle: int, output: Output) -> "SampleOutput":
        return cls(
            handle,
            output.tokens,
            output.logprobs.packed,
            output.finish_reason,
            output.stop_reason,
            output.error,
            output.timings,
            output.cached_tokens,
            output.prompt_logprobs.packed,
        )

    def output(self, request_id: str, index: int) -> Output:
        return Output(
            request_id,
            index,
            self.tokens,
            Logprobs(self.logprobs),
            self.finish_reason,
            self.stop_reason,
            self.error,
            self.timings,
            self.cached_tokens,
            Logprobs(self.prompt_logprobs),
        )


class Report(Message):
    """The result of one turn of the loop, which obeys commands and then takes one step. Every turn ends with a report.

    turn: the number of the turn, which serves as heartbeat. metrics: the engine's, after that step; None if the last
    ones are recent enough. waiting: samples that wait to start. requests: requests in the engine that have not ended.
    commands_taken, samples_taken: commands taken since the start, and their samples (a request counts n times).
    busy: whether another step follows at once, so that silence from now on means a long step.
    step_s: the step's duration in seconds; 0 if there was nothing to do.
    accepted, refused: handles of requests. ended: the number of samples that have ended.
    handles [B], tokens [B, width]: columns of the samples with plain tokens (`packed`); negative numbers pad rows of
    fewer than `width` tokens. logprobs: these tokens', row by row; empty if no row has any.
    others: all other outputs.
    charged, seconds: columns of the samples that run (`packed`) and of their shares of the device so far
    (`packed_seconds`), in the reports that have metrics.
    """

    turn: int = 0
    metrics: Metrics | None = None
    waiting: int = 0
    requests: int = 0
    commands_taken: int = 0
    samples_taken: int = 0
    busy: bool = False
    step_s: float = 0.0
    accepted: list[int] = []
    refused: list[tuple[int, Failure]] = []
    ended: int = 0
    handles: bytes = b""
    tokens: bytes = b""
    width: int = 1
    logprobs: list[bytes] = []
    others: list[SampleOutput] = []
    charged: bytes = b""
    seconds: bytes = b""


class SelfChecked(Message):
    """The idle engine has checked its invariants. If not `passed`, the log describes a bug of ours."""

    passed: bool


class EngineFailed(Message):
    """The engine has ended without a `Stop`: a step raised an exception, which makes its state unknown, or its process
    is gone. This is its last message."""

    failure: Failure


class Watched(Message):
    """The state of a watched engine between two steps, in numbers: no text, no token ids, no salts.

    Columns are bytes in this machine's order: int32 [n, k] or, where it says so, int64.

    time: microseconds of `time.monotonic`. page_count, page_size: 0 for a cache without pages.
    pages: of `whole`, a byte per page (`PageState`); otherwise the runs that have changed (`page_changes`).
    rows [n, 6]: the running sequences; handles: int64, theirs. See ROW.
    waiting: how many samples wait; queue [n, 3], int64: of the first ones, see QUEUED.
    tree [n, 7]: the largest nodes of the prefix index (`NodeSize`); None where it is not new, or there is no index.
    steps [n, 17], int64: the steps since the last message, see STEP. events [n, 3], int64: see EVENT.
    """

    time: int
    page_count: int = 0
    page_size: int = 0
    whole: bool = False
    pages: bytes = b""
    handles: bytes = b""
    rows: bytes = b""
    waiting: int = 0
    queue: bytes = b""
    tree: bytes | None = None
    steps: bytes = b""
    events: bytes = b""


ROW = ("slot", "stored", "prompt", "decodes", "pages", "accepted")
"""A running sequence: the row of its state, positions stored, its prompt's length, whether it decodes (1) or its prompt
is under way (0), the pages that it holds, and the drafts accepted while it was watched."""

QUEUED = ("handle", "waited", "priority")
"""A waiting sample: its wait in microseconds, and its priority."""

STEP = (
    "number", "start", "planned", "launched", "device", "ready", "end", "rows", "sequences", "prefill", "decode",
    "drafted", "accepted", "preempted", "admitted", "ended", "waiting",
)  # fmt: skip
"""A step. Times are microseconds of `time.monotonic`: planning begins, ends, the launch ends, the device begins (at the
launch, or where the step before was ready), its result is ready on the host, its commit ends. The rest are counts: rows
that the model computed, sequences, tokens of prompts, tokens of decodes, drafts verified and accepted, sequences that
were preempted, admitted and ended, and samples that waited."""

EVENT = ("time", "kind", "handle")
"""A change of a sample, at a time in microseconds of `time.monotonic`. kind: an index of EVENTS."""

EVENTS = ("admitted", "ended")
"""A sample that was preempted is admitted again."""


EngineMessage = Loading | Loaded | LoadFailed | Report | SelfChecked | EngineFailed | Watched


# -- columns of handles and of seconds; those of tokens are made by `packed_ids` ---------------------------------------


def packed(handles: Iterable[int]) -> bytes:
    """Pack handles: 8 bytes each, in this machine's byte order."""
    return array("q", handles).tobytes()


def unpacked(column: bytes) -> list[int]:
    """Read a column. Raises TypeError for bytes that `packed` did not make."""
    return memoryview(column).cast("q").tolist()


def packed_seconds(seconds: Iterable[float]) -> bytes:
    """Pack seconds: 8 bytes each, in this machine's byte order."""
    return array("d", seconds).tobytes()


def unpacked_seconds(column: bytes) -> list[float]:
    """Read a column. Raises ValueError for bytes that `packed_seconds` did not make."""
    return array("d", column).tolist()
