"""Threads share one LLM: each gets its own answers, none waits for ever, and Ctrl-C ends a wait."""

import asyncio
import gc
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.assembly.guard import BrokenEngine, ClosedEngine
from gradus.errors import GradusError
from gradus.text.interrupts import Interrupts
from gradus.text.turns import Turns

PROMPTS = ["a first prompt", "b", "the third and longest of these prompts"]
PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=5, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True)
PATIENCE_S = 30


KERNELS = pytest.mark.parametrize("llm", [("p06", 2), (None, 2)], indirect=True)
"""Where the threads of the engine's own kernels matter too. Those of the final engine spin while they wait for each
other, which a busy machine makes long."""


@pytest.fixture(scope="module", params=[("p06", 2), (None, 1)])
def llm(request) -> LLM:
    phase, threads = request.param
    return LLM("random:tiny-llama", phase=phase, device="cpu", dtype="float32", threads=threads)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm):
    yield
    while llm.has_work:  # a step may be in flight, for sequences that were cancelled
        assert llm.step() == []
    assert not llm.front_end.open_requests
    llm.check()


def in_threads(*calls) -> list:
    """Run each call in a thread of its own. Returns their results, or errors, in order."""
    results = [None] * len(calls)

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return results


def whole(llm, prompt):
    return llm.generate(prompt, PARAMS)[0].token_ids


def streamed(llm, prompt):
    return sum((delta.token_ids for delta in llm.stream(prompt, PARAMS)), ())


@KERNELS
def test_calls_of_several_threads_get_the_answers_that_they_get_alone(llm):
    alone = [whole(llm, prompt) for prompt in PROMPTS]
    calls = [lambda prompt=prompt, way=way: way(llm, prompt) for way in (whole, streamed) for prompt in PROMPTS]
    assert in_threads(*calls) == alone + alone


def test_a_stream_that_no_thread_reads_holds_up_no_other_call(llm):
    alone = whole(llm, "b")
    stream = llm.stream("a", PARAMS)
    seen = next(stream).token_ids
    assert in_threads(lambda: whole(llm, "b")) == [alone]
    seen += sum((delta.token_ids for delta in stream), ())
    assert seen == whole(llm, "a")


def test_an_iterator_may_be_read_by_one_thread_after_another(llm):
    stream, seen = llm.stream("a", PARAMS), ()
    for _ in range(4):
        (delta,) = in_threads(lambda: next(stream))
        seen += delta.token_ids
    assert seen + sum((delta.token_ids for delta in stream), ()) == whole(llm, "a")


def test_a_call_in_a_thread_whose_task_was_cancelled_leaves_the_model_to_the_next(llm, monkeypatch):
    advance, begun, left = llm.core.step, threading.Event(), threading.Event()

    def until_left():
        begun.set()
        assert left.wait(PATIENCE_S)
        return advance()

    async def cancelled():
        task = asyncio.create_task(asyncio.to_thread(whole, llm, "a"))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left.set()
        return await asyncio.wait_for(asyncio.to_thread(whole, llm, "b"), PATIENCE_S)

    with monkeypatch.context() as during:
        during.setattr(llm.core, "step", until_left)
        found = asyncio.run(cancelled())
    assert found == whole(llm, "b")


def test_asynchronous_iterators_interleave(llm):
    async def read(prompt):
        stream, seen = llm.stream(prompt, PARAMS), ()
        while (delta := await asyncio.to_thread(next, stream, None)) is not None:
            seen += delta.token_ids
        return seen

    async def both():
        return await asyncio.wait_for(asyncio.gather(*map(read, PROMPTS)), PATIENCE_S)

    assert asyncio.run(both()) == [whole(llm, prompt) for prompt in PROMPTS]


def test_another_thread_may_cancel_a_stream_whose_iterator_then_ends(llm):
    stream = llm.stream("a", ENDLESS)
    name = next(stream).request_id
    in_threads(lambda: llm.cancel(name))
    *_, last = stream
    assert last.completion.finish_reason == "cancelled"


def test_a_step_leaves_a_streams_deltas_to_its_iterator(llm):
    stream = llm.stream("a", PARAMS)
    seen = next(stream).token_ids
    mine = llm.submit("b", PARAMS)
    deltas = [delta for _ in range(30) for delta in llm.step()]
    assert {delta.request_id for delta in deltas} == {mine}
    assert seen + sum((delta.token_ids for delta in stream), ()) == whole(llm, "a")


def test_an_iterator_collected_within_a_step_is_ended_by_the_next_one(llm, monkeypatch):
    holder = [llm.stream("a", ENDLESS)]
    next(holder[0])
    holder.append(holder)  # a cycle: only the collector ends it
    advance, collect = llm.core.step, iter([gc.collect])  # once: it looks at all that this process has

    def collecting():
        for first in collect:
            first()
        return advance()

    del holder
    with monkeypatch.context() as during:
        during.setattr(llm.core, "step", collecting)
        assert len(whole(llm, "b")) == PARAMS.max_tokens
    assert not llm.front_end.open_requests


def test_close_ends_another_threads_call_in_one_line():
    llm = LLM("random:tiny-llama", phase="p06", device="cpu", dtype="float32")
    stream = llm.stream("a", ENDLESS)
    next(stream)
    in_threads(llm.close)
    with pytest.raises(ClosedEngine, match="load the model again"):
        next(stream)


@KERNELS
def test_a_forked_child_has_its_turn(llm):
    expected = whole(llm, "b")
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # OpenMP's other threads are gone
        os._exit(whole(llm, "b") != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- the blocks --------------------------------------------------------------------------------------------------------


@contextmanager
def another_thread_inside(turns):
    """Within this block, another thread is inside one of `turns`."""
    held, release = threading.Event(), threading.Event()

    def hold():
        with turns:
            held.set()
            release.wait(PATIENCE_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    held.wait(PATIENCE_S)
    try:
        yield
    finally:
        release.set()
        holder.join()


def test_ctrl_c_ends_the_wait_for_a_turn():
    turns = Turns(Interrupts())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with another_thread_inside(turns):
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt), turns:
                raise AssertionError("two threads in one block")
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    with turns:  # the wait that ended left nothing locked
        assert turns.mine


def test_a_thread_that_asks_again_and_again_gets_no_two_turns_while_another_waits():
    turns, order, stop = Turns(Interrupts()), [], time.monotonic() + PATIENCE_S

    def ask(name):
        for _ in range(20):
            with turns:
                order.append(name)
                while order.count(name) <= 10 and not turns._next.locked() and time.monotonic() < stop:
                    time.sleep(0.0001)  # until the other thread waits

    in_threads(lambda: ask("a"), lambda: ask("b"))
    assert order[:20] in (["a", "b"] * 10, ["b", "a"] * 10)


def test_a_block_within_a_block_is_refused_in_one_line():
    turns = Turns(Interrupts())
    with turns, pytest.raises(GradusError, match="within one of its own steps"), turns:
        pass
    with turns:
        pass


def test_a_child_forked_in_the_middle_of_a_block_says_so():
    turns = Turns(Interrupts())
    with another_thread_inside(turns):
        child = os.fork()
        if not child:
            try:
                with turns:
                    os._exit(1)
            except BrokenEngine as error:
                os._exit(0 if "forked" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
