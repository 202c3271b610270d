"""Whatever comes through the socket: one line on both sides, and the runner serves the next engine."""

import os
import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gradus.cache import TableChange
from gradus.engine.plan import Admission, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.structured import Structured
from gradus.engine.wire import pack
from gradus.errors import ConfigError
from gradus.execution.remote import stream as streams
from gradus.execution.remote.messages import (
    BEGIN,
    FAILED,
    HELLO,
    PLAN,
    PREPARE,
    PROTOCOL,
    RESULT,
    Begin,
    MessageError,
    pack_failed,
    pack_greeting,
    pack_result,
    pack_structured,
    unpack_failed,
)
from gradus.execution.remote.plan_check import PlanCheck
from gradus.execution.remote.runner import RunnerLost
from gradus.execution.remote.service import Service, StepFailed
from gradus.execution.remote.stream import HEAD, Listener, connect
from tests.execution.remote.pairs import connected, hello_of, serving
from tests.scheduling.replica import Replica

LIMITS = ModelLimits(1000, 4096)
HELLO_4 = hello_of(max_sequences=4, page_size=4, pages=24, token_budget=64, prompt_logprobs=True)


def admission(slot: int = 0, prompt=(1, 2, 3), **params) -> Admission:
    asked = Request.create("a", prompt, SamplingParams(max_tokens=4, seed=5, **params), LIMITS)
    return Admission(slot, asked, 0, tuple(prompt))


def first_plan() -> Plan:
    return Plan([Span(None, 0, 0, (1, 2, 3), 1, TableChange(0, ((7,),)))], [admission()])


def decodes(slots=(0,), starts=(3,), limits=(4,), **more) -> Decodes:
    return Decodes(*(np.array(each, np.int64) for each in (slots, starts, limits)), **more)


def a_step(runner) -> list[int]:
    """The tokens of two steps, as proof that a runner serves."""
    first = runner.run(first_plan()).get().tokens.tolist()
    return first + runner.run(Plan(decodes=decodes())).get().tokens.tolist()


@pytest.fixture
def listener(tmp_path):
    """A runner's, which must serve as before once the test has done its worst."""
    listener = serving(tmp_path / "socket", Service(Replica(4), HELLO_4))
    before = serves(listener)
    yield listener
    assert serves(listener) == before
    listener.close()


def serves(listener) -> list[int]:
    runner = connected(listener.path)
    tokens = a_step(runner)
    runner.stream.close()
    return tokens


# -- an engine that breaks the protocol --------------------------------------------------------------------------------

WRONG_PLANS = {
    "a slot must be between 0 and 3, got 4": lambda plan: replace(plan, admissions=[admission(4)]),
    "a slot must be between 0 and 3, got -1": lambda plan: replace(plan, admissions=[admission(-1)]),
    "a page must be between 0 and 24, got 25": lambda plan: with_pages(plan, TableChange(0, ((25,),))),
    "a page must be between 0 and 24, got -3": lambda plan: with_pages(plan, TableChange(0, ((-3,),))),
    "the kept pages of a block table must be between 0 and 0, got 1": lambda plan: with_pages(
        plan, TableChange(1, ((3,),))
    ),
    "must have equal parts for 1 layer groups": lambda plan: with_pages(plan, TableChange(0, ((3,), (4,)))),
    "the length of a block table must be between 0 and 1024, got 1025": lambda plan: with_pages(
        plan, TableChange(0, ((3,) * 1025,))
    ),
    "a position must be between 0 and 3, got 4": lambda plan: with_span(plan, tokens=(1, 2, 3, 4, 5)),
    "a token must be between 0 and 999, got 1000": lambda plan: with_span(plan, tokens=(1, 2, 3, 1000)),
    "a token must be between 0 and 999, got -1": lambda plan: with_span(plan, tokens=(-1, 2, 3, 4)),
    "the rows with logits of a span must be between 0 and 1, got 2": lambda plan: with_span(plan, logits=2),
    "the number of scored tokens must be between 1 and 3": lambda plan: with_span(plan, scores=Scores((1,) * 4, 0)),
    "the number of likeliest tokens must be between 0 and 20": lambda plan: with_span(plan, scores=Scores((1,), 21)),
    "a scored token must be between 0 and 999": lambda plan: with_span(plan, scores=Scores((1000,), 0)),
    "a plan runs slot 1, which has no owner": lambda plan: with_span(plan, slot=1, pages=None),
    "a plan gives pages to slot 1, which has no owner": lambda plan: with_span(plan, slot=1),
    "a plan runs a slot twice": lambda plan: replace(plan, spans=[*plan.spans, replace(plan.spans[0], pages=None)]),
    "a wiped page must be between 1 and 24, got 0": lambda plan: replace(plan, wiped=(0,)),
    "a plan decodes a slot whose prompt has not run": lambda plan: replace(plan, spans=[], decodes=decodes()),
    "a plan decodes a slot twice": lambda plan: replace(plan, decodes=decodes((1, 1), (1, 1), (2, 2))),
    "the columns of a plan's decodes differ in length": lambda plan: replace(plan, decodes=decodes((1,), (1, 2))),
    "a stop token must be between 0 and 999": lambda plan: replace(
        plan, admissions=[with_request(stop_ids=frozenset({1000}))]
    ),
    "a prompt's token must be between 0 and 999": lambda plan: replace(
        plan, admissions=[with_request(prompt=(1, 2, 4000))]
    ),
    "a seed must be between 0": lambda plan: replace(plan, admissions=[with_request(seed=-1)]),
    "the length of a prompt must be between 1 and 4096, got 0": lambda plan: replace(
        plan, admissions=[with_request(prompt=())]
    ),
    "a biased token must be between 0 and 999": lambda plan: replace(
        plan, admissions=[with_request(params=SamplingParams(logit_bias={1000: 1.0}))]
    ),
    "a plan asks for a grammar, and this runner keeps to none": lambda plan: replace(
        plan, admissions=[with_request(params=SamplingParams(structured={"json": True}))]
    ),
    "a plan has 65 tokens, and a step at most 64": lambda plan: with_span(
        plan, tokens=(1,) * 65, pages=TableChange(0, (tuple(range(1, 18)),))
    ),
}


def with_pages(plan: Plan, change: TableChange) -> Plan:
    return with_span(plan, pages=change)


def with_span(plan: Plan, **fields) -> Plan:
    return replace(plan, spans=[replace(plan.spans[0], **fields)])


def with_request(**fields) -> Admission:
    request = replace(admission().request, **{"packed": b"", **fields})
    return Admission(0, request, 0, request.prompt)


@pytest.mark.parametrize("line", WRONG_PLANS)
def test_a_plan_with_a_wrong_number_ends_the_connection_with_one_line(listener, line):
    runner = connected(listener.path)
    with pytest.raises(RunnerLost) as lost:
        runner.run(WRONG_PLANS[line](first_plan())).get()
    assert line in str(lost.value) and "\n" not in str(lost.value)
    runner.stream.close()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"drafts": np.array([1])}, "a number of drafts must be between 0 and 0, got 1"),
        ({"limits": np.array([4096])}, "the positions that a decode may store must be between 0 and 4095"),
        ({"starts": np.array([-1])}, "a decode's start must be between 0 and 4095"),
        ({"pages": [(0, TableChange(2, ((),)))]}, "the kept pages of a block table must be between 0 and 1, got 2"),
        ({"slots": np.array([9])}, "a slot must be between 0 and 3, got 9"),
    ],
)
def test_a_decode_with_a_wrong_number_is_refused(wrong, line):
    check = PlanCheck(replaced(HELLO_4, drafts=0))
    check.check(first_plan())
    with pytest.raises(MessageError, match=line):
        check.check(Plan(decodes=replace(decodes(), **wrong)))


def replaced(hello, **fields):
    return msgspec.structs.replace(hello, **fields)


def test_a_decode_stores_nothing_beyond_its_pages():
    check, plan = PlanCheck(HELLO_4), Plan(decodes=decodes(limits=(500,)))
    check.check(first_plan())
    check.check(plan)
    assert plan.decodes.limits.tolist() == [4]


def test_a_new_owner_has_no_page_of_the_one_before():
    check = PlanCheck(HELLO_4)
    check.check(first_plan())
    with pytest.raises(MessageError, match="a position must be between 0 and -1, got"):
        check.check(replace(first_plan(), spans=[Span(None, 0, 0, (1, 2, 3), 1)]))


# -- bytes -------------------------------------------------------------------------------------------------------------


def raw(listener: Listener) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(listener.path)  # blocking: where others wait, it waits too
    return end


def frame(kind: bytes, payload: bytes) -> bytes:
    return HEAD.pack(len(payload), kind) + payload


BEGUN = frame(BEGIN, pack_greeting(Begin(protocol=PROTOCOL)))
TALK = [BEGUN, frame(PLAN, pack(first_plan())), frame(PLAN, pack(Plan(decodes=decodes())))]


@pytest.mark.parametrize("sent", range(len(TALK) + 1))
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 9])
def test_an_engine_may_go_at_any_byte_of_any_message(listener, sent, cut):
    end = raw(listener)
    end.sendall(b"".join(TALK[:sent]) + b"".join(TALK[sent : sent + 1])[:cut])
    end.close()


def last_words(end: socket.socket) -> str:
    """Read until the runner closes, and return its reason."""
    end.settimeout(10)
    received = b""
    while chunk := end.recv(1 << 16):
        received += chunk
    kind, reasons = HELLO, []
    while received:
        length, kind = HEAD.unpack_from(received)
        reasons.append(received[HEAD.size : HEAD.size + length])
        received = received[HEAD.size + length :]
    assert kind == FAILED
    return unpack_failed(reasons[-1])


@pytest.mark.parametrize(
    ("bytes_", "line"),
    [
        (HEAD.pack(2**32 - 1, PLAN), "announces a message of 4294967295 bytes, more than 65536"),
        (frame(PLAN, pack(first_plan())), "this is no answer of an engine"),
        (frame(BEGIN, pack_greeting(Begin(protocol=99))), "the engine speaks version 99, and this runner version 1"),
        (frame(BEGIN, b"\xc1"), "this is no answer of an engine"),
        (BEGUN + HEAD.pack(2**31, PLAN), "announces a message of 2147483648 bytes, more than 67108864"),
        (BEGUN + frame(b"Z", b""), "a frame of the kind b'Z' came instead of a plan"),
        (BEGUN + frame(PLAN, b""), "this is no packed plan"),
        (BEGUN + frame(PLAN, pack(first_plan())[:-1]), "this is no packed plan"),
        (
            BEGUN + frame(PREPARE, pack_structured(Structured(json=True))),
            "a grammar came, and this runner keeps to none",
        ),
        (BEGUN + frame(PREPARE, b"\x81\xa4json\x07"), "this is no constraint"),
    ],
)
def test_bytes_that_are_no_message_are_answered_with_one_line(listener, bytes_, line):
    end = raw(listener)
    end.sendall(bytes_)
    assert line in last_words(end)
    end.close()


def test_random_bytes_end_a_connection_and_nothing_else(listener):
    draw = random.Random(7)
    for _ in range(200):
        end = raw(listener)
        end.sendall(
            BEGUN + frame(PLAN, damaged(draw, pack(first_plan()))) if draw.random() < 0.8 else draw.randbytes(40)
        )
        end.shutdown(socket.SHUT_WR)
        end.settimeout(10)
        while end.recv(1 << 16):
            pass
        end.close()


def damaged(draw: random.Random, packed: bytes) -> bytes:
    changed = bytearray(packed)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed[: draw.randint(0, len(changed))] if draw.random() < 0.2 else changed)


def test_nothing_is_left_of_engines_that_have_gone(listener):
    files, threads = len(os.listdir("/dev/fd")), threading.active_count()
    for _ in range(50):
        end = raw(listener)
        end.sendall(TALK[0] + TALK[1])
        end.close()
    serves(listener)
    for _ in range(100):
        if len(os.listdir("/dev/fd")) <= files and threading.active_count() <= threads:
            return
        time.sleep(0.02)  # the last connection is closed on a thread
    raise AssertionError("files or threads are left")


def test_pages_that_an_engine_has_used_are_wiped_for_the_next(tmp_path):
    wiped = []
    listener = serving(
        tmp_path / "socket", Service(Replica(4), HELLO_4, forget=lambda pages: wiped.append(sorted(pages)))
    )
    for _ in range(2):
        serves(listener)
    third = connected(listener.path)  # it is greeted once the one before is forgotten
    assert wiped == [[7], [7]]
    third.stream.close()
    listener.close()


def test_an_engine_that_says_nothing_makes_room_for_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("gradus.execution.remote.service.PATIENCE_S", 0.1)
    listener = serving(tmp_path / "socket", Service(Replica(4), HELLO_4))
    silent = raw(listener)
    assert serves(listener)
    silent.close()
    listener.close()


# -- a runner that breaks the protocol ---------------------------------------------------------------------------------


@pytest.fixture
def answering(tmp_path):
    """answering(*frames): the address of a runner that greets, and sends these bytes for the first plan."""
    ends = []

    def start(*sent: bytes, hello: bytes | None = None) -> str:
        path = str(tmp_path / f"socket{len(ends)}")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(path)
        listening.listen(1)
        ends.append(listening)

        def run() -> None:
            end, _ = listening.accept()
            ends.append(end)
            end.sendall(frame(HELLO, pack_greeting(HELLO_4)) if hello is None else hello)
            if hello is None:
                reading = streams.Stream(end, "the engine")
                reading.receive()
                reading.receive()
            with suppress(OSError):  # the test may have ended
                end.sendall(b"".join(sent))
            end.close()

        threading.Thread(target=run, daemon=True).start()
        return path

    yield start
    for end in ends:
        end.close()


def sampled(tokens=(5,), counts=(1,), **more) -> bytes:
    return frame(RESULT, pack_result(3, Sampled(np.array(tokens, np.int64), list(counts), **more)))


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (b"", "is gone"),
        (sampled()[:7], "is gone"),
        (HEAD.pack(2**32 - 1, RESULT), "announces a message of 4294967295 bytes, more than 67108864"),
        (frame(RESULT, b"\x00"), "this is no result"),
        (frame(PLAN, b"\x00"), "this is no result"),
        (frame(FAILED, pack_failed("no\nmemory\x1b[2J is left")), "has ended the connection: no memory [2J is left"),
        (sampled((1000,)), "a sampled token must be below 1000"),
        (sampled((-4,)), "a sampled token must be below 1000"),
        (sampled((5, 6)), "a result has 2 tokens, which are not its plan's"),
        (sampled((5,), (0,)), "a result has other rows than its plan"),
        (sampled(width=9), "a result has other rows than its plan"),
        (sampled(seconds=float("nan")), "a step's seconds must be between"),
        (sampled(logprobs=[b"1234567"]), "a result's log-probabilities are not those of its tokens"),
        (sampled(logprobs=[b"\xff" * 8]), "a token with a log-probability must be below 1000"),
        (sampled(faults={3: "no"}), "a result's fault has no row"),
        (sampled(scores=[(b"",)]), "a result scores other prompts than its plan"),
    ],
)
def test_an_engine_fails_in_one_line_when_its_runner_breaks_the_protocol(answering, sent, line):
    runner = connected(answering(sent))
    with pytest.raises(RunnerLost) as lost:
        runner.run(first_plan()).get()
    assert line in str(lost.value) and str(lost.value).isprintable()


@pytest.mark.parametrize(
    ("hello", "line"),
    [
        (b"", "is gone: it may be loading its model"),
        (b"HTTP/1.1 400 Bad Request\r\n", "speaks another protocol: .* announces a message of"),
        (frame(FAILED, pack_failed("no room")), "refuses: no room"),
        (frame(HELLO, b"\x80"), "speaks another protocol: this is no greeting of a runner"),
        (frame(HELLO, pack_greeting(replaced(HELLO_4, protocol=2))), "speaks version 2 .* run both from one release"),
        (frame(HELLO, pack_greeting(replaced(HELLO_4, plans="gplan0"))), "plans 'gplan0'"),
        (frame(HELLO, pack_greeting(replaced(HELLO_4, max_sequences=0))), "this is no greeting of a runner"),
    ],
)
def test_a_greeting_that_does_not_fit_is_refused_at_the_start(answering, hello, line):
    with pytest.raises(ConfigError, match=line):
        connected(answering(hello=hello))


def test_a_plan_that_nobody_takes_fails_in_one_line(answering):
    runner = connected(answering(frame(FAILED, pack_failed("out of memory"))))
    lines = []
    for _ in range(50):
        try:
            runner.run(first_plan())
        except RunnerLost as lost:
            lines.append(str(lost))
            break
        time.sleep(0.02)
    assert lines and "out of memory" in lines[0]


def test_both_sides_may_send_more_than_a_socket_holds(tmp_path):
    """A long prompt goes out while the long result of the step before comes in."""
    hello, count = hello_of(max_sequences=4, page_size=4096, prompt_logprobs=True), 4000

    class Verbose:
        def run(self, plan):
            class Step:
                rows = 1

                def get(self):
                    scores = [tuple([b"\0" * 168] * count)]
                    return Sampled(np.array([1]), [1], scores=scores)

            return Step()

    def plan() -> Plan:
        span = Span(None, 0, 0, (1,) * count, 1, TableChange(0, ((7,),)), Scores((1,) * count, 20))
        return Plan([span], [admission(prompt=(2,) * count)])

    listener = serving(tmp_path / "socket", Service(Verbose(), hello))
    runner = connected(listener.path)
    steps = [runner.run(plan()) for _ in range(60)]
    assert [len(step.get().scores[0]) for step in steps] == [count] * 60
    listener.close()


# -- the process and its socket ----------------------------------------------------------------------------------------


def test_a_step_that_fails_ends_the_service_and_says_why(tmp_path):
    class Broken:
        def run(self, plan):
            raise RuntimeError("no kernel\nimage")

    ended = []
    listener = serving(tmp_path / "socket", Service(Broken(), HELLO_4), ended.append)
    with pytest.raises(RunnerLost, match="a step failed: RuntimeError: no kernel image"):
        connected(listener.path).run(first_plan()).get()
    for _ in range(100):
        if ended:
            break
        time.sleep(0.02)
    assert isinstance(ended[0], StepFailed)
    listener.close()


@pytest.mark.parametrize("address", ["tcp:127.0.0.1:9", "127.0.0.1:9", "/tmp/x", "unix:", ""])
def test_an_address_that_is_no_unix_socket_is_refused(address):
    with pytest.raises(ConfigError, match=r"an address has the form unix:/path, got .* ssh -N -L"):
        connect(address, 1.0)


def test_a_socket_of_another_user_is_refused_by_both_sides(tmp_path, monkeypatch):
    listener = serving(tmp_path / "socket", Service(Replica(4), HELLO_4))
    other = os.geteuid() + 1
    peer = streams.peer_of
    monkeypatch.setattr(streams, "peer_of", lambda end: peer(end)._replace(uid=other))
    with pytest.raises(streams.Gone, match=f"belongs to user {other}"):
        connected(listener.path)
    monkeypatch.setattr(streams, "peer_of", peer)
    assert serves(listener)
    listener.close()


def test_a_socket_is_private_and_replaces_one_that_is_dead(tmp_path):
    path = tmp_path / "socket"
    first = Listener(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="another process does"):
        Listener(str(path))
    first.socket.close()  # as if it had been killed
    Listener(str(path)).close()
    assert not path.exists()
    path.write_text("notes")
    with pytest.raises(ConfigError, match="a file that is no socket is there"):
        Listener(str(path))
    assert path.read_text() == "notes"


def test_where_no_runner_listens_one_line_says_how_to_start_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no runner listens at .* gradus deploy runner --socket"):
        connect(f"unix:{tmp_path}/none", 1.0)
