"""An LLM that is interrupted by real signals, many times: each time it must serve the next call as if nothing had been.

    python -m tests.text.interrupted PHASE COUNT

Sends signals at random moments until COUNT calls have ended in KeyboardInterrupt, which it prints; it gives up after
MOST times as many. PHASE: "" for the final engine.
"""

import os
import random
import signal
import sys
import threading
import time

from gradus import LLM, SamplingParams

PROMPTS = ["a first prompt", "b", "the third and longest of these prompts"]
PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=5, ignore_eos=True)


MOST = 20


def main(phase: str, count: int) -> None:
    llm = LLM("random:tiny-llama", phase=phase or None, device="cpu", dtype="float32", max_sequences=2, threads=2)
    handler = signal.getsignal(signal.SIGINT)
    expected = llm.generate(PROMPTS, PARAMS)
    usual, moments, interrupted = 0.01, random.Random(0), 0
    for number in range(MOST * count):
        if interrupted == count:
            break
        call = stream if number % 4 == 0 else generate
        interrupted += broke(llm, call, moments.uniform(0, usual))
        assert signal.getsignal(signal.SIGINT) is handler
        assert not llm.front_end.open_requests
        while llm.has_work:  # a step may be in flight, for sequences that were cancelled
            assert llm.step() == []
        llm.check()
        started = time.perf_counter()
        done = llm.generate(PROMPTS, PARAMS)
        usual = time.perf_counter() - started  # on a busy machine it changes
        assert [each.token_ids for each in done] == [each.token_ids for each in expected]
    print(interrupted)


def broke(llm, call, delay: float) -> bool:
    """Whether the call, or what follows it until its signal is there, ended in KeyboardInterrupt."""
    sender = threading.Timer(delay, os.kill, [os.getpid(), signal.SIGINT])
    try:
        sender.start()
        call(llm)
    except KeyboardInterrupt:
        return True
    try:
        time.sleep(10)
    except KeyboardInterrupt:
        return False
    raise AssertionError("the signal was lost")


def generate(llm) -> None:
    llm.generate(PROMPTS, PARAMS)


def stream(llm) -> None:
    for _ in llm.stream(PROMPTS[0], PARAMS):
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
