"""Run by test_freed_slots.py in a process of its own, where Triton interprets: slots that change owners on a GPU's
runner, and a row that is not finite beside one that is."""

import math

import pytest
import torch

from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams
from tests.kernels import interpreted_masked
from tests.kernels.interpreted_masked import LIMITS, engine
from tests.phases.drive import run
from tests.sampling.freed import COMING, LEAVING, PAIRS, request, spoil


def sampler_of(used: Engine):
    return used.runner.sampler


def tokens(engine: Engine, name: str, params: dict) -> tuple[int, ...]:
    (ending,) = run(engine, [request(name, params)]).values()
    assert ending.finish_reason in ("length", "stop")
    return ending.tokens


@pytest.fixture(scope="module")
def fresh():
    """What each request gets from a slot that nobody has had before."""
    return {name: tokens(engine(kernels=False, lag=0), name, params) for name, params in COMING.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["torch", "kernels"])
def used(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreted_masked, "SLOTS", 1)
        return engine(kernels=request.param, lag=1)


@pytest.mark.parametrize(("coming", "leaving"), PAIRS)
def test_a_freed_slot_leaves_its_next_owner_nothing(used, fresh, coming, leaving):
    tokens(used, leaving, LEAVING[leaving])
    spoil(sampler_of(used).table)
    assert tokens(used, coming, COMING[coming]) == fresh[coming]


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_a_row_that_is_not_finite_ends_its_request_alone(kernels, monkeypatch):
    """R19: the neighbor's tokens are those that it has alone."""
    well, ill = (
        Request.create(name, prompt, SamplingParams(max_tokens=6, temperature=1.0, seed=4), LIMITS)
        for name, prompt in (("well", [5, 6, 7]), ("ill", [8, 9]))
    )
    alone = run(engine(kernels=kernels, lag=1), [well])["well", 0]
    both = engine(kernels=kernels, lag=1)
    sampler = sampler_of(both)
    name = "draw_slots" if kernels else "sample"
    draw, turned = getattr(sampler, name), []

    def draw_ill(logits, rows, *others, **named):
        """Turn the logits of the ill request's slot into NaN once it decodes."""
        slots = rows if kernels else torch.from_numpy(rows.slots)
        if len(slots) > 1:
            turned.append(1)
            logits = torch.where((slots == 1)[:, None], math.nan, logits)
        return draw(logits, rows, *others, **named)

    monkeypatch.setattr(sampler, name, draw_ill)
    ended = run(both, [well, ill])
    assert turned and ended["ill", 0].finish_reason == "error"
    assert ended["well", 0] == alone and alone.finish_reason == "length"
