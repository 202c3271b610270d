"""Ctrl-C ends a call between two steps: what was running is cancelled, and the model serves the next call."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from gradus import LLM, SamplingParams
from gradus.text.interrupts import Interrupts
from tests.forked import run_forked
from tests.pairwise import first

SOME = SamplingParams(max_tokens=6, ignore_eos=True)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def llm() -> LLM:
    return LLM("random:tiny-llama", phase="p06", device="cpu", dtype="float32", max_sequences=2)


@pytest.fixture(autouse=True)
def handler_of_the_program():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.parametrize("place", ["schedule", "commit", "cancel"])
def test_a_signal_within_a_step_ends_the_call_after_it(llm, monkeypatch, place):
    expected = llm.generate(["a", "b"], SOME)
    method = getattr(llm.engine.scheduler, place)

    def interrupted(*given):
        interrupt()
        return method(*given)

    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(llm.engine.scheduler, place, interrupted)
        stream = llm.stream("a", SOME)
        next(stream)
        stream.close()
    assert not llm.has_work and not llm.front_end.open_requests
    llm.check()
    assert [done.token_ids for done in llm.generate(["a", "b"], SOME)] == [done.token_ids for done in expected]


def test_what_an_interrupted_step_brought_for_others_is_not_lost(llm, monkeypatch):
    mine = llm.submit("a", SOME)
    advance = llm.core.step

    def interrupted():
        interrupt()
        return advance()

    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(llm.core, "step", interrupted)
        llm.generate("b", SOME)
    tokens = sum((delta.token_ids for delta in until_idle(llm) if delta.request_id == mine), ())
    assert tokens == llm.generate("a", SOME)[0].token_ids


def until_idle(llm):
    while llm.has_work:
        yield from llm.step()


@pytest.mark.parametrize("phase", first(["", "p02"]))
def test_an_interrupted_model_serves_the_next_call(phase):
    command = [sys.executable, "-m", "tests.text.interrupted", phase, "8"]
    run = run_forked(command, cwd=Path.cwd(), env=os.environ, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == 8


# -- the blocks --------------------------------------------------------------------------------------------------------


def test_a_block_runs_to_its_end_and_the_signal_comes_then():
    done, held = [], Interrupts()
    with pytest.raises(KeyboardInterrupt), held:
        interrupt()
        done.append("block")
    assert done == ["block"]
    with held:  # and it came once
        pass


def test_an_inner_block_delivers_at_its_end_too():
    done, held = [], Interrupts()
    with pytest.raises(KeyboardInterrupt), held:
        with held:
            interrupt()
            done.append("inner")
        done.append("outer")
    assert done == ["inner"]


def test_the_programs_own_handler_is_called_and_put_back():
    calls = []

    def own(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        with Interrupts():
            interrupt()
            assert calls == []
        assert calls == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_python_handler_is_left_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing():
    seen = []

    def block() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_two_signals_within_a_block_wait_for_its_end_and_come_as_one():
    calls, done = [], []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append("handler"))
    try:
        with Interrupts():
            interrupt()
            interrupt()
            done.append(list(calls))
        assert (done, calls) == ([[]], ["handler"])
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_third_signal_does_not_wait_for_a_step_that_hangs():
    reached = []
    with pytest.raises(KeyboardInterrupt), Interrupts():
        for number in range(1, 4):
            interrupt()
            reached.append(number)
    assert reached == [1, 2]


def test_a_second_signal_within_a_step_leaves_the_model_usable(llm, monkeypatch):
    expected = llm.generate(["a", "b"], SOME)
    advance = llm.core.step

    def interrupted():
        interrupt()
        interrupt()
        return advance()

    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(llm.core, "step", interrupted)
        llm.generate(["a", "b"], SOME)
    assert [done.token_ids for done in llm.generate(["a", "b"], SOME)] == [done.token_ids for done in expected]
