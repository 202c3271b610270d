"""Messages between event loop and engine are plain data: they could be sent, and lose nothing on the way."""

import pickle

import pytest

from gradus import errors
from gradus.cache.usage import CacheUsage
from gradus.engine.logprobs import PAIR, Logprobs
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import Output, Timings
from gradus.errors import CapacityError, CheckpointError, ConfigError, GradusError, RequestError
from gradus.server.engine.loop import shortened
from gradus.server.engine.messages import (
    Cancel,
    EngineFailed,
    Failure,
    Loaded,
    LoadFailed,
    ModelInfo,
    Report,
    SelfChecked,
    Stop,
    Submit,
)
from gradus.server.http.body import BodyError
from gradus.server.measures import Watch

LIMITS = ModelLimits(100, 64, (2,))
REQUEST = Request.create(
    "r", [1, 2], SamplingParams(n=2, logit_bias={5: 1.0}, stop=["a"]), LIMITS, SchedulingParams(timeout=3, deadline=9)
)
LOGPROBS = Logprobs((PAIR.pack(3, -0.5) * 2,))
OUTPUT = Output("r", 1, (3,), LOGPROBS, "stop", 3, None, Timings(0.1, 0.2, 0.3, 1), 4)
REPORT = Report(
    Metrics(completed=1, cache=CacheUsage(8, 16, 2, 1, 5, 20, 5, 3, 1, 0, 0)),
    commands_taken=3,
    samples_taken=2,
    busy=True,
    step_s=0.5,
    accepted=["r"],
    refused=[("q", Failure.of(RequestError("no", param="n", limit="1", got=2)))],
    outputs=[OUTPUT],
)


@pytest.mark.parametrize(
    "message",
    [
        Submit(REQUEST),
        Cancel("r", "stop", 1),
        Stop(),
        Loaded(
            ModelInfo("m", "final", None, "cpu", "float32", LIMITS, {"max_sequences": 8, "switches": {"x": True}}),
            Metrics(waiting=2),
        ),
        LoadFailed(Failure.of(ConfigError("no"))),
        REPORT,
        SelfChecked(True),
        EngineFailed(Failure.of(ZeroDivisionError("secret"))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_survives_the_journey(message):
    assert pickle.loads(pickle.dumps(message)) == message


class OutOfPatience(CapacityError):
    """Not known to the other side."""


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (ConfigError("a"), ConfigError),
        (CheckpointError("a"), CheckpointError),
        (OutOfPatience("a"), CapacityError),
        (RequestError("a", param="n", limit="1", got=2), RequestError),
        (BodyError("a", 413), RequestError),
    ],
)
def test_a_mistake_arrives_as_the_nearest_error_that_both_sides_know(error, known):
    arrived = Failure.of(error).error()
    assert type(arrived) is known and str(arrived) == "a"
    if known is RequestError:
        assert (arrived.param, arrived.limit, arrived.got) == (error.param, error.limit, error.got)


def test_every_kind_of_error_can_be_made_again():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GradusError)]
    assert len(kinds) >= 5
    for kind in kinds:
        error = kind("a", param="n") if kind is RequestError else kind("a")
        assert type(Failure.of(error).error()) is kind


def test_of_a_defect_only_its_kind_crosses():
    failure = Failure.of(ZeroDivisionError("secret"))
    assert failure == Failure("ZeroDivisionError") and failure.error() is None


def test_a_request_that_has_waited_has_less_time_and_never_none():
    scheduling = shortened(REQUEST, waited=2).scheduling
    assert (scheduling.timeout, scheduling.deadline) == (1, 7)
    assert 0 < shortened(REQUEST, waited=100).scheduling.timeout < 1e-3
    unlimited = Request.create("r", [1], SamplingParams(), LIMITS)
    assert shortened(unlimited, waited=100).scheduling == SchedulingParams()


# -- silence -----------------------------------------------------------------------------------------------------------


def test_silence_counts_from_the_first_command_to_a_resting_engine():
    watch = Watch()
    assert watch.silent_since is None
    watch.sent(1.0)
    watch.sent(2.0)
    assert watch.silent_since == 1.0


def test_every_report_of_a_busy_engine_breaks_the_silence_and_the_last_one_ends_it():
    watch = Watch()
    watch.sent(1.0)
    watch.reported(Report(commands_taken=1, busy=True), 2.0)
    assert watch.silent_since == 2.0
    watch.reported(Report(commands_taken=1, busy=False), 3.0)
    assert watch.silent_since is None


def test_a_command_that_a_report_had_not_seen_is_waited_for():
    watch = Watch()
    watch.sent(1.0)
    watch.sent(2.0)  # while the turn that took the first one ran
    watch.reported(Report(commands_taken=1, busy=False), 3.0)
    assert watch.silent_since == 3.0
