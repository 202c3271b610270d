"""Slots that change owners in the final engine on a CPU: with its compiled kernels, and without."""

import pytest

from gradus.engine.request import Request, SamplingParams
from gradus.text.llm import LLM
from tests.phases.drive import run
from tests.sampling.freed import COMING, LEAVING, PAIRS, spoil

# a byte's token is its code here, and 0 ends a sequence
PROMPT = [5, 6, 7, 5]


def core(switch_off=()):
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=1, switch_off=switch_off)
    return llm, llm.core.core


def tokens(engine, name, params):
    request = Request.create(name, PROMPT, SamplingParams(max_tokens=6, **params), engine.limits)
    (ending,) = run(engine, [request]).values()
    return ending


@pytest.fixture(scope="module", params=[(), ("kernels",)], ids=["compiled", "torch"])
def used(request):
    llm, engine = core(request.param)
    yield engine
    llm.close()


@pytest.fixture(scope="module")
def fresh():
    found = {}
    for name, params in COMING.items():
        llm, engine = core(("kernels",))
        found[name] = tokens(engine, name, params)
        llm.close()
    return found


@pytest.mark.parametrize(("coming", "leaving"), PAIRS)
def test_a_freed_slot_leaves_its_next_owner_nothing(used, fresh, coming, leaving):
    tokens(used, leaving, LEAVING[leaving])
    spoil(used.runner.sampler.table)
    assert tokens(used, coming, COMING[coming]) == fresh[coming]
