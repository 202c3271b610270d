"""What a step on its way to the host says, and what it took: the number of drafts is chosen by that."""

import time

import numpy as np
import pytest
import torch

from gradus.device.transfer import Arrival
from gradus.engine.plan import Plan, Span
from gradus.execution.result import StepClock, StepResult

PROMPT = Plan([Span(None, 0, 0, (3, 4), 1)])
CPU = torch.device("cpu")


@pytest.fixture
def took():
    """The seconds of a step that is done now, and looked at `look_after` seconds later."""
    clock = StepClock()

    def ask(plan: Plan, usual: bool = True, *, look_after: float = 0.0) -> float:
        result = StepResult(plan, 1, np.array([5]), Arrival(CPU, timed=True), clock=clock, usual=usual)
        time.sleep(look_after)
        sampled = result.get()
        assert sampled.usual is usual
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


def test_a_step_with_a_prompt_and_the_one_after_it_are_timed(took):
    took(Plan())
    assert took(PROMPT) > 0.0 and took(Plan()) > 0.0


def test_a_step_in_which_a_drafter_catches_up_is_timed_as_no_usual_one(took):
    took(Plan())
    assert took(Plan(), usual=False) > 0.0
    assert took(Plan()) > 0.0


def test_tokens_outlive_the_buffer_that_they_arrived_in():
    buffer = np.array([7, 8])
    sampled = StepResult(Plan(), 2, buffer, Arrival(CPU)).get()
    buffer[:] = 0
    assert sampled.tokens.tolist() == [7, 8] and sampled.seconds == 0.0
