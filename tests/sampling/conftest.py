"""Samplers that must all do the same."""

from collections.abc import Callable

import pytest
import torch

from gradus.sampling.sampler import Sampler

MakeSampler = Callable[[int, int | None], Sampler]


@pytest.fixture(scope="session", params=["reference"])
def make_sampler(request: pytest.FixtureRequest) -> MakeSampler:
    """make_sampler(vocab_size, slots) → Sampler; slots: None where the sampler may find out."""
    return {"reference": lambda vocab_size, slots: Sampler(vocab_size, torch.device("cpu"), slots)}[request.param]
