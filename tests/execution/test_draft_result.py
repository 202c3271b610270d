"""What a step that verifies drafts is said to have taken: the number of drafts is chosen by it."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus.engine.plan import Plan, Span
from gradus.execution.gpu.decode_step import DraftResult

PROMPT = Plan([Span(None, 0, 0, (3, 4), 1)])


@pytest.fixture
def took():
    """The seconds of a step that is done now, and looked at `look_after` seconds later."""
    drafter = SimpleNamespace(steady=True)
    runner = SimpleNamespace(step=SimpleNamespace(drafter=drafter), device=torch.device("cpu"), arrived=None)

    def ask(plan: Plan, steady: bool = True, *, look_after: float = 0.0) -> float:
        drafter.steady = steady
        result = DraftResult(runner, plan, 1, torch.tensor([5]), 1, None)
        time.sleep(look_after)
        sampled = result.get()
        assert sampled.usual is steady
        return sampled.seconds

    return ask


def test_what_the_host_does_between_two_steps_is_part_of_one(took):
    begun = time.perf_counter()
    assert took(Plan()) == 0.0, "nothing came before it"
    time.sleep(0.02)
    assert 0.02 <= took(Plan()) <= time.perf_counter() - begun


def test_a_host_that_looks_late_at_a_step_makes_the_next_one_no_shorter(took):
    took(Plan(), look_after=0.05)
    assert took(Plan()) >= 0.05


def test_a_step_after_a_prompt_is_not_timed(took):
    took(PROMPT)
    assert took(Plan()) == 0.0
    assert took(Plan()) > 0.0


def test_a_step_in_which_a_drafter_catches_up_is_timed_as_no_usual_one(took):
    took(Plan())
    assert took(Plan(), steady=False) > 0.0
    assert took(Plan()) > 0.0
