"""What a slot's owner asks for, as the device's tables have it. The drawing itself is tested on a GPU."""

import torch

from gradus.engine.plan import Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.sampling.kernel_sampler import KernelSampler

LIMITS = ModelLimits(50, 40)


def admission(slot: int, **params) -> Admission:
    request = Request.create(f"r{slot}", [1, 2], SamplingParams(**params), LIMITS)
    return Admission(slot, request, 0, request.prompt)


def test_the_tables_hold_what_all_of_a_step_s_newcomers_ask_for():
    sampler = KernelSampler(50, torch.device("cpu"), slots=4)
    sampler.admit([admission(2, seed=7, temperature=0.5), admission(0, seed=3, temperature=0)])
    assert sampler.seeds.tolist() == [3, 0, 7, 0, 0]
    assert sampler.temperatures.tolist() == [0, 0, 0.5, 0, 0]
    sampler.admit([])
    assert sampler.special == set()


def test_a_slot_is_special_as_long_as_its_owner_asks_for_more_than_the_tables_hold():
    sampler = KernelSampler(50, torch.device("cpu"), slots=8)
    more = [dict(top_k=3), dict(top_p=0.5), dict(min_p=0.1), dict(logprobs=0), dict(logit_bias={1: 2.0}),
            dict(min_tokens=1), dict(presence_penalty=1.0)]  # fmt: skip
    sampler.admit([admission(slot, **params) for slot, params in enumerate(more)])
    sampler.admit([admission(7, temperature=0.5)])
    assert sampler.special == set(range(7))
    sampler.admit([admission(3), admission(5, top_k=1)])
    assert sampler.special == {0, 1, 2, 4, 5, 6}, "slot 3 has a new owner, who asks for no more"
