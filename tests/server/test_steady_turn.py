"""Count what a turn of the engine's process passes on a CPU while one sequence decodes: a token's way stays short."""

import queue
import sys
from collections import Counter
from pathlib import Path

import pytest

import gradus
from gradus import LLM
from gradus.engine.request import Request, SamplingParams
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Submit

pytest.importorskip("numba")

HOME = str(Path(gradus.__file__).parent)
MOST_CALLS, MOST_FUNCTIONS, MOST_FILES = 100, 85, 22  # 87, 78 and 22 when this was written; Python 3.12 has fewer calls


def passed(turn) -> Counter[tuple[str, str]]:
    """The calls of this project's functions in a turn, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        turn()
    finally:
        sys.setprofile(before)
    return calls


def test_a_steady_turn_passes_few_functions():
    commands: queue.Queue = queue.Queue()
    with LLM("random:tiny-llama", device="cpu", dtype="float32") as llm:
        loop = EngineLoop(llm.core, commands, lambda report: None)
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        commands.put(Submit.of(1, Request.create("a", [5, 6, 7], params, llm.engine.limits)))
        for _ in range(20):
            loop._turn()
        calls = min((passed(loop._turn) for _ in range(17)), key=Counter.total)  # where no page is entered
    files = {file for file, _ in calls}
    assert calls.total() <= MOST_CALLS and len(calls) <= MOST_FUNCTIONS and len(files) <= MOST_FILES, calls
