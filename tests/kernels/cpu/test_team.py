"""Threads that share a step: the same result however many there are, and none that the others wait for."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
import torch
from numba import njit

from gradus import LLM, SamplingParams
from gradus.kernels.cpu import model as kernel_model
from gradus.kernels.cpu.attention import spans
from gradus.kernels.cpu.machine import add, exchange_if, load, sleep
from gradus.kernels.cpu.team import (
    CHUNKS,
    DONE,
    END,
    FIRST,
    NOTHING,
    OVER,
    WORDS,
    WORK,
    Team,
    finish,
    open_step,
    take,
)  # fmt: skip
from tests.kernels.cpu.steps import Pages, Step, close, made, same

ROOT = Path(__file__).parents[3]
CONTEXTS = [5, 31, 0, 16, 63, 1, 32, 200]
SOME = SamplingParams(max_tokens=8, ignore_eos=True)


def tiny(**settings) -> LLM:
    return LLM("random:tiny-llama", device="cpu", dtype="float32", **settings)


def tokens(llm: LLM) -> list[list[int]]:
    return [done.token_ids for done in llm.generate(["Once", "upon a", "time"], SOME)]


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("gradus-cpu")}


def soon(condition, seconds=20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def short_chunks(monkeypatch):
    """Many small pieces of work, so that threads meet often."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    monkeypatch.setattr(spans, "FEWEST_KEYS", 4)


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_any_number_of_threads_gives_the_same_result(shape):
    model = made(shape)
    step = Step(model, CONTEXTS)
    expected = step.in_torch(model, Pages(model))
    for threads in (1, 2, 3, 5):
        close(step.compiled(Pages(model).decode_model(model, threads)), expected)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_who_does_what_changes_no_bit(threads):
    """Two steps, over and over, while threads come and go as they like: one may miss a stage, or a whole step."""
    model = made("tiny-gemma3")
    steps, decode = [Step(model, CONTEXTS), Step(model, CONTEXTS[3:])], Pages(model).decode_model(model, threads)
    for step in steps:  # each stores its keys
        step.compiled(decode)
    first = [step.compiled(decode) for step in steps]
    for _ in range(150):
        for step, expected in zip(steps, first, strict=True):
            same(step.compiled(decode), expected)


@pytest.mark.usefixtures("short_chunks")
def test_two_models_on_two_threads_at_once():
    models = [made("tiny-llama"), made("tiny-qwen3")]
    steps = [Step(model, CONTEXTS) for model in models]
    decodes = [Pages(model).decode_model(model, 2) for model in models]
    expected = [step.compiled(decode) for step, decode in zip(steps, decodes, strict=True)]

    def often(which: int) -> bool:
        return all(torch.equal(steps[which].compiled(decodes[which]), expected[which]) for _ in range(100))

    with ThreadPoolExecutor(2) as both:
        assert list(both.map(often, range(2))) == [True, True]


# -- threads that do not run -------------------------------------------------------------------------------------------


class Stalled(Team):
    """Its threads hear the call and never come."""

    def _serve(self, thread, call, awake):
        while call.acquire() and awake is self.awake:
            pass


def test_a_step_is_done_by_those_who_run(monkeypatch):
    model = made("tiny-llama")
    step = Step(model, CONTEXTS)
    expected = step.compiled(Pages(model).decode_model(model, 3))
    monkeypatch.setattr(kernel_model, "Team", Stalled)
    decode = Pages(model).decode_model(model, 3)
    for _ in range(3):
        same(step.compiled(decode), expected)
    decode.team.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_decodes_with_threads_of_its_own():
    model = made("tiny-llama")
    step, decode = Step(model, CONTEXTS), Pages(model).decode_model(model, 2)
    expected = step.compiled(decode)
    before = decode.team.calls
    child = os.fork()
    if child == 0:  # no pytest in here: only an exit code comes back
        # torch's own threads did not survive either, so the child computes nothing with them
        torch.set_num_threads(1)
        equal = all(torch.equal(step.compiled(decode), expected) for _ in range(5))
        own = decode.team.calls is not before and decode.team.process == os.getpid() and len(workers()) == 1
        os._exit(0 if equal and own else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    same(step.compiled(decode), expected)  # and the parent goes on


def right_in_a_child(step: Step, decode, expected: torch.Tensor) -> bool:
    """Fork, and say whether the child computes the step as its parent did."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # in place of pytest-timeout's
        signal.alarm(20)  # ends one that spins
        torch.set_num_threads(1)
        os._exit(0 if all(torch.equal(step.compiled(decode), expected) for _ in range(3)) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_amid_a_stage_decodes_too():
    """Its words say that a stage is under way, and the thread that took a chunk is gone."""
    model = made("tiny-llama")
    step, decode = Step(model, CONTEXTS), Pages(model).decode_model(model, 2)
    expected, words = step.compiled(decode), decode.work.words
    assert soon(lambda: not decode.team.awake[1])
    before = words.copy()
    chunks = np.array([2, 1, 1])
    act(OPEN, words.ctypes.data, 0, len(chunks), chunks)
    assert act(TAKE, words.ctypes.data, 0, 0, chunks) == (0, 0)
    try:
        assert right_in_a_child(step, decode, expected)
    finally:
        words[:] = before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_during_another_threads_steps_decodes_too():
    model = made("tiny-llama")
    step, decode = Step(model, CONTEXTS), Pages(model).decode_model(model, 2)
    expected, over = step.compiled(decode), threading.Event()

    def steps() -> None:
        while not over.is_set():
            step.compiled(decode)

    stepping = threading.Thread(target=steps)
    stepping.start()
    try:
        assert all(right_in_a_child(step, decode, expected) for _ in range(5))
    finally:
        over.set()
        stepping.join()


def test_a_closed_team_still_steps():
    model = made("tiny-llama")
    step, decode = Step(model, CONTEXTS), Pages(model).decode_model(model, 3)
    expected = step.compiled(decode)
    decode.team.close()
    same(step.compiled(decode), expected)


# -- an end ------------------------------------------------------------------------------------------------------------


def test_a_model_that_is_dropped_leaves_memory_and_its_threads_end():
    gc.collect()
    before = workers()
    llm = tiny(max_sequences=2)
    runner = llm.engine.runner
    runner.step.passes.decode.team.close()
    llm.engine.runner.step.passes.decode = Pages(runner.model).decode_model(runner.model, 3)  # whatever the machine has
    started = workers() - before
    assert len([thread for thread in started if thread.is_alive()]) >= 2
    seen = ref(runner.step.passes.decode), ref(runner.model)
    del llm, runner
    gc.collect()
    assert soon(lambda: gc.collect() >= 0 and all(one() is None for one in seen))
    assert soon(lambda: not any(thread.is_alive() for thread in started))


def test_a_model_that_is_dropped_amid_steps_is_gone_at_once():
    """Its threads still wait for the next step, and hold neither its weights nor its pages."""
    decode = Pages(model := made("tiny-llama")).decode_model(model, 3)
    Step(model, CONTEXTS).compiled(decode)
    seen, others = ref(decode), decode.team.others
    assert all(thread.is_alive() for thread in others)
    del decode
    assert seen() is None
    assert not any(thread.is_alive() for thread in others)


ENDS = """
import argparse
from gradus import LLM, SamplingParams

llm = LLM("random:tiny-llama", device="cpu", threads=3)
llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))
argparse.kept = lambda: llm
"""


def test_a_process_ends_well_while_threads_wait_for_the_next_step_of_an_engine_that_outlives_its_modules():
    """Python deletes an object that another module refers to last, when the names of modules are gone."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_have_nothing_to_do_sleep():
    """They leave their loop, and so use no core; the next step wakes them."""
    model = made("tiny-llama")
    step, decode = Step(model, CONTEXTS), Pages(model).decode_model(model, 3)
    step.compiled(decode)
    assert soon(lambda: decode.team.awake == [True, False, False])
    used = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - used < 0.25
    step.compiled(decode)


# -- work --------------------------------------------------------------------------------------------------------------

OPEN, TAKE, FINISH, CLAIM = range(4)


@njit(nogil=True)
def act(what, words, first, second, chunks):
    """One word of a thread to the others: `team.py` is compiled code alone."""
    if what == OPEN:
        open_step(words, first, second)
    elif what == FINISH:
        finish(words, first)
    elif what == CLAIM:
        return (1 if exchange_if(words, WORK, first, second) else 0), 0
    else:
        return take(words, chunks)
    return 0, 0


@njit(nogil=True)
def share(words, chunks, claims, early, steps, thread):
    """Do `steps` steps as the decode loop does; thread 0 opens them. Counts claims, and those before their time."""
    opened, idle = 0, 0
    while idle < 20_000 and (opened < steps or thread):
        if not thread:
            open_step(words, 0, len(chunks))
            opened += 1
        while True:
            stage, chunk = take(words, chunks)
            if stage >= 0:
                idle = 0
                for before in range(chunks[stage - 1] if stage else 0):
                    if load(claims, 64 * (stage - 1) + before) <= load(claims, 64 * stage + chunk):
                        add(early, 0, 1)  # the stage before is not done
                if (chunk + thread) % 7 == 0:
                    sleep(1)
                add(claims, 64 * stage + chunk, 1)
                finish(words, chunks[stage])
            elif stage == OVER:
                idle += 1
                break


class Words:
    """The words that threads share, as one thread after the other sees them."""

    def __init__(self, *chunks: int) -> None:
        self.memory = np.zeros(WORDS + 8, np.int64)
        self.address = -(-self.memory.ctypes.data // 64) * 64
        self.chunks = np.array(chunks)
        self.word = self.memory[(self.address - self.memory.ctypes.data) // 8 :]

    def __call__(self, what: int, first: int = 0, second: int = 0) -> tuple[int, int]:
        return act(what, self.address, first, second, self.chunks)


def test_chunks_are_taken_in_their_order_and_a_stage_begins_when_the_last_one_ends():
    words = Words(2, 1)
    assert words(TAKE) == (OVER, 0)
    for _ in range(3):  # steps
        words(OPEN, 0, 2)
        assert [words(TAKE), words(TAKE), words(TAKE)] == [(0, 0), (0, 1), (NOTHING, 0)]
        words(FINISH, 2)
        assert words(TAKE) == (NOTHING, 0)
        words(FINISH, 2)
        assert [words(TAKE), words(TAKE)] == [(1, 0), (NOTHING, 0)]
        words(FINISH, 1)
        assert words(TAKE) == (OVER, 0) and words.word[DONE] == 0
    assert (words.word[FIRST], words.word[END]) == (4, 6)


def test_what_a_thread_saw_before_it_slept_cannot_be_taken():
    """It read the word, slept, and wakes in another stage, after the step, and in the next step."""
    words = Words(2, 1)
    words(OPEN, 0, 2)
    seen = int(words.word[WORK])
    assert words(CLAIM, seen, seen + 1)[0] == 1
    for _ in range(2):
        assert words(CLAIM, seen, seen + 1)[0] == 0
        words(TAKE)
        words(FINISH, 2)
        words(FINISH, 2)
        assert words(CLAIM, seen, seen + 1)[0] == 0
        assert words(TAKE) == (1, 0)
        words(FINISH, 1)
        assert words(CLAIM, seen, seen + 1)[0] == 0
        words(OPEN, 0, 2)
        words(TAKE)
    assert seen < 1 << CHUNKS <= words.word[WORK]


def test_a_step_may_begin_with_a_later_stage():
    """As one with a product beside the model's stages does; the steps around it are as ever."""
    words = Words(2, 1, 3)
    for first, stages in [(0, 2), (2, 1), (2, 1), (0, 2), (1, 2)]:
        words(OPEN, first, stages)
        for stage in range(first, first + stages):
            count = int(words.chunks[stage])
            assert [words(TAKE) for _ in range(count)] == [(stage, chunk) for chunk in range(count)]
            for _ in range(count):
                assert words(TAKE) == (NOTHING, 0)
                words(FINISH, count)
        assert words(TAKE) == (OVER, 0)


def test_every_chunk_is_done_once_and_in_order():
    steps, threads = 300, 4
    words = Words(5, 1, 9, 1, 1, 17, 3)
    claims, early = np.zeros(64 * len(words.chunks), np.int64), np.zeros(1, np.int64)

    def take_part(thread: int) -> None:
        share(words.address, words.chunks, claims.ctypes.data, early.ctypes.data, steps, thread)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(take_part, range(threads)))
    counts = claims.reshape(-1, 64)
    assert [row[:count].tolist() for row, count in zip(counts, words.chunks, strict=True)] == [
        [steps] * count for count in words.chunks
    ]
    assert not counts.sum() - steps * words.chunks.sum() and early[0] == 0
