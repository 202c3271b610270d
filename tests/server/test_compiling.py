"""New constraints are compiled outside the engine's steps, and hold up only their own requests."""

import queue
import threading
import time
from dataclasses import replace

import pytest

from gradus.engine.request import Request, SamplingParams
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.server.engine import compiling
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Cancel, Report, Submit
from gradus.structured import grammars
from tests.server.scripted import ScriptedCore


class Compiler:
    """Compiles "slow" while `going` is not set, and refuses "bad"."""

    def __init__(self) -> None:
        self.going = threading.Event()
        self.compiled: list[str] = []
        self.held: list[str] = []
        self.most = 0  # different ones at a time

    def hold(self, structured: Structured) -> None:
        assert structured.text != "slow" or self.going.wait(20)
        if structured.text == "bad":
            raise RequestError("structured: bad", param="structured")
        self.compiled.append(structured.text)
        self._keep(structured.text)

    def hold_compiled(self, structured: Structured) -> bool:
        known = structured.text in self.compiled
        if known:
            self._keep(structured.text)
        return known

    def release(self, structured: Structured) -> None:
        self.held.remove(structured.text)

    def _keep(self, text: str) -> None:
        self.held.append(text)
        self.most = max(self.most, len(set(self.held)))


class Engine:
    """An EngineLoop over a scripted core, whose turns are the test's."""

    def __init__(self, core=None) -> None:
        self.core = core or ScriptedCore()
        if core is None:
            self.core.compiler = Compiler()
        self.commands, self.reports = queue.SimpleQueue(), list[Report]()
        self.loop = EngineLoop(self.core, self.commands, self._post)

    def _post(self, message) -> None:
        if isinstance(message, Report):
            self.reports.append(message)

    def submit(self, handle: int, regex: str | None = None, tokens: int = 2) -> None:
        limits = replace(self.core.limits, structured=True, eos_token_ids=(0,))
        params = SamplingParams(max_tokens=tokens, structured=regex and Structured(regex=regex))
        self.commands.put(Submit.of(handle, Request.create(f"r{handle}", [1], params, limits)))

    def run(self, until) -> None:
        end = time.monotonic() + 20
        while not until() and time.monotonic() < end:
            self.loop._turn()
        assert until()

    def ended(self) -> list[tuple[int, str]]:
        outputs = [output for report in self.reports for output in report.others]
        return [(output.handle, output.finish_reason) for output in outputs if output.finish_reason]


def test_other_requests_end_while_a_constraint_is_compiled():
    engine = Engine()
    engine.submit(1, "slow")
    engine.submit(2)
    engine.core.compiler.compiled.append("known")
    engine.submit(3, "known")
    engine.run(lambda: len(engine.ended()) == 2)
    assert [handle for handle, _ in engine.ended()] == [2, 3]
    assert engine.reports[-1].samples_taken == 2 and engine.reports[-1].commands_taken == 3
    engine.core.compiler.going.set()
    engine.run(lambda: len(engine.ended()) == 3)
    assert engine.reports[-1].samples_taken == 3 and engine.reports[-1].commands_taken == 3
    assert not engine.core.compiler.held


def test_a_cancel_does_not_overtake_its_request():
    engine = Engine()
    engine.submit(1, "slow", tokens=1000)
    engine.commands.put(Cancel(1, "cancelled"))
    engine.submit(2)
    engine.run(lambda: engine.ended() == [(2, "length")])
    engine.core.compiler.going.set()
    engine.run(lambda: len(engine.ended()) == 2)
    assert engine.ended()[1] == (1, "cancelled") and engine.reports[-1].requests == 0
    assert not engine.core.compiler.held


def test_a_constraint_that_fails_refuses_its_request_alone():
    engine = Engine()
    for handle, regex in ((1, "bad"), (2, "good")):
        engine.submit(handle, regex)
    engine.run(lambda: len(engine.ended()) == 1)
    refused = [each for report in engine.reports for each in report.refused]
    assert [(handle, failure.message) for handle, failure in refused] == [(1, "structured: bad")]
    assert engine.ended() == [(2, "length")] and not engine.core.compiler.held


@pytest.mark.parametrize("bound", ["MAX_HELD", "MAX_HELD_CHARACTERS"])
def test_what_is_held_is_bounded_and_every_request_is_served(monkeypatch, bound):
    monkeypatch.setattr(compiling, bound, 3)
    engine = Engine()
    for handle in range(1, 13):
        engine.submit(handle, "abcdef"[handle % 6])
    engine.run(lambda: len(engine.ended()) == 12)
    assert 1 < engine.core.compiler.most <= 3 and not engine.core.compiler.held
    assert not engine.loop._compiling._held and not engine.loop._compiling._characters


def test_a_longer_text_than_the_bound_is_held_alone(monkeypatch):
    monkeypatch.setattr(compiling, "MAX_HELD_CHARACTERS", 3)
    engine = Engine()
    for handle, regex in ((1, "a"), (2, "abcdef"), (3, "b")):
        engine.submit(handle, regex)
    engine.run(lambda: len(engine.ended()) == 3)


def test_no_step_compiles(monkeypatch):
    """Neither the first time, nor where templates that were used since have dropped it. Steps run on this thread."""
    from gradus.text.llm import LLM

    compiled = []
    original = grammars._compile

    def counted(structured, *others):
        compiled.append((structured.text, threading.current_thread().name))
        return original(structured, *others)

    monkeypatch.setattr(grammars, "_compile", counted)
    monkeypatch.setattr(grammars, "MAX_TEMPLATES", 1)
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=2)
    engine = Engine(llm.core)
    for handle in range(1, 9):
        engine.submit(handle, f"[a-c]{{{handle}}}", tokens=4)
    engine.run(lambda: len(engine.ended()) == 8)
    assert compiled == [(f"[a-c]{{{handle}}}", "compiling") for handle in range(1, 9)]
    assert llm.core.compiler is not None and not llm.core.compiler._held
