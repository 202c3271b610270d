"""Messages between front end and engine: they lose nothing on the way, and nothing else gets through."""

import os
import socket
import stat
import struct

import msgspec
import pytest

from gradus import errors
from gradus.cache.usage import CacheUsage
from gradus.device.peer import peer_of
from gradus.engine.logprobs import PAIR, Logprobs
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams, packed_ids
from gradus.engine.sequence import Output, Timings
from gradus.errors import CapacityError, CheckpointError, ConfigError, GradusError, RequestError
from gradus.server.engine.loop import is_plain, shortened
from gradus.server.engine.messages import (
    Cancel,
    EngineFailed,
    Failure,
    Loaded,
    LoadFailed,
    ModelInfo,
    Report,
    SampleOutput,
    SelfChecked,
    Stop,
    Submit,
    packed,
    packed_seconds,
)
from gradus.server.engine.wire import (
    LARGEST_FRAME,
    LONGEST_PATH,
    VERSION,
    Hello,
    Load,
    PrivateSocket,
    WireError,
    check_peer,
    commands_and_load,
    frame,
    hello_and_messages,
)
from gradus.server.failures import BodyError

LIMITS = ModelLimits(100, 64, (2,))
REQUEST = Request.create(
    "r", [1, 2], SamplingParams(n=2, logit_bias={5: 1.0}, stop=["a"]), LIMITS, SchedulingParams(timeout=3, deadline=9)
)
LOGPROBS = Logprobs((PAIR.pack(3, -0.5) * 2,))
OUTPUT = Output("r", 1, (3,), LOGPROBS, "stop", 3, None, Timings(0.1, 0.2, 0.3, 1, 0.4), 4, LOGPROBS)
REPORT = Report(
    turn=7,
    metrics=Metrics(completed=1, cache=CacheUsage(8, 16, 2, 1, 5, 20, 5, 3, 1, 0, 0)),
    commands_taken=3,
    samples_taken=2,
    busy=True,
    step_s=0.5,
    accepted=[1],
    refused=[(3, Failure.of(RequestError("no", param="n", limit="1", got=2)))],
    handles=packed([1, 2**40]),
    tokens=packed_ids([5, -1]),
    logprobs=[b"", PAIR.pack(3, -0.5)],
    others=[SampleOutput.of(2, OUTPUT)],
    charged=packed([1]),
    seconds=packed_seconds([0.25]),
)
FROM_ENGINE = [
    Hello(VERSION, 12),
    Loaded(
        ModelInfo("m", "final", None, "cpu", "float32", LIMITS, {"switches": {"x": True}}, {"top_k": 20, "top_p": 0.5}),
        Metrics(waiting=2),
    ),
    LoadFailed(Failure.of(ConfigError("no"))),
    REPORT,
    Report(),
    SelfChecked(True),
    EngineFailed(Failure.of(ZeroDivisionError("secret"))),
]
TO_ENGINE = [
    Load(VERSION, "some.module", {"model": "m", "switch_off": ["graphs"]}),
    Submit.of(3, REQUEST),
    Cancel(3, "stop", 1),
    Cancel(3, "cancelled"),
    Stop(),
]


def name_of(message) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", FROM_ENGINE, ids=name_of)
def test_every_message_of_the_engine_survives_the_journey(message):
    assert list(hello_and_messages().feed(frame(message))) == [message]


@pytest.mark.parametrize("message", TO_ENGINE, ids=name_of)
def test_every_command_survives_the_journey(message):
    assert list(commands_and_load().feed(frame(message))) == [message]


def test_recommended_sampling_keeps_whole_numbers():
    (loaded,) = hello_and_messages().feed(frame(FROM_ENGINE[1]))
    assert SamplingParams(**loaded.info.default_sampling).top_k == 20


def test_a_request_arrives_as_it_was_checked():
    (command,) = commands_and_load().feed(frame(Submit.of(3, REQUEST)))
    assert command.request() == REQUEST


def test_an_output_arrives_as_it_was():
    assert SampleOutput.of(2, OUTPUT).output("r", 1) == OUTPUT
    assert is_plain(Output("r", 1, (3,))) and not is_plain(Output("r", 1, (3,), prompt_logprobs=LOGPROBS))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 64, 1000])
def test_messages_are_found_wherever_the_stream_is_cut(size):
    frames, stream = hello_and_messages(), b"".join(map(frame, FROM_ENGINE))
    arrived = [message for at in range(0, len(stream), size) for message in frames.feed(stream[at : at + size])]
    assert arrived == FROM_ENGINE


def test_a_large_message_arrives_in_many_pieces():
    request = Request.create("r", [7] * 500_000, SamplingParams(), ModelLimits(100, 1 << 20))
    frames, stream = commands_and_load(), frame(Submit.of(1, request))
    pieces = [message for at in range(0, len(stream), 4096) for message in frames.feed(stream[at : at + 4096])]
    assert [message.request() for message in pieces] == [request]


@pytest.mark.parametrize(
    ("received", "says"),
    [
        (struct.pack("<I", LARGEST_FRAME + 1), "larger than"),
        (struct.pack("<I", 1) + b"\xc1", "no message"),
        (struct.pack("<I", 4) + b"\x93\xa1x\x01", "no message"),
        (frame(Hello(VERSION, 1)), "no message"),  # of the other direction
        (frame(REPORT), "no message"),
        (frame(Cancel("three", "stop")), "no message"),
    ],
    ids=["size", "not MessagePack", "an unknown kind", "Hello", "Report", "a wrong type"],
)
def test_what_is_no_command_is_refused(received, says):
    with pytest.raises(WireError, match=says):
        list(commands_and_load().feed(received))


def test_a_field_that_checks_itself_is_checked_on_arrival_too():
    command = Submit.of(3, REQUEST)
    sent = msgspec.msgpack.decode(frame(command)[4:])
    sent[4]["temperature"] = -1
    content = msgspec.msgpack.encode(sent)
    with pytest.raises(WireError, match="temperature must be"):
        list(commands_and_load().feed(struct.pack("<I", len(content)) + content))


def test_a_message_that_is_too_large_is_not_sent():
    with pytest.raises(WireError, match="larger than"):
        frame(Cancel(1, "x" * (LARGEST_FRAME + 1)))


# -- the socket --------------------------------------------------------------------------------------------------------


def test_the_socket_is_in_a_folder_of_its_own_which_goes_with_it():
    private = PrivateSocket()
    assert stat.S_IMODE(os.stat(private.folder).st_mode) == 0o700
    assert os.stat(private.folder).st_uid == os.geteuid() and os.listdir(private.folder) == ["engine"]
    private.close()
    assert not os.path.exists(private.folder)


def test_a_long_name_for_temporary_files_does_not_make_the_sockets_path_too_long(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    private = PrivateSocket()
    try:
        assert len(private.path) <= LONGEST_PATH and not list(deep.iterdir())
    finally:
        private.close()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not name the peer's process")
def test_only_the_expected_process_may_connect(monkeypatch):
    private = PrivateSocket()
    try:
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(private.path)
            theirs, _ = private.listening.accept()
            with theirs:
                assert peer_of(theirs) == (os.geteuid(), os.getpid())
                check_peer(theirs, os.getpid())
                with pytest.raises(WireError, match=f"process {os.getpid()} of user"):
                    check_peer(theirs, os.getpid() + 1)
                monkeypatch.setattr(os, "geteuid", lambda: 12345)
                with pytest.raises(WireError, match="of user"):
                    check_peer(theirs, os.getpid())
    finally:
        private.close()


# -- failures ----------------------------------------------------------------------------------------------------------


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
