"""Samplers that must all do the same."""

from collections.abc import Callable

import pytest
import torch

from gradus.sampling.sampler import Sampler

MakeSampler = Callable[[int, int], Sampler]


@pytest.fixture(scope="session", params=["reference", pytest.param("kernels", marks=pytest.mark.gpu)])
def make_sampler(request: pytest.FixtureRequest) -> MakeSampler:
    """make_sampler(vocab_size, slots) → Sampler."""
    return {"reference": reference, "kernels": kernels}[request.param]


def reference(vocab_size: int, slots: int) -> Sampler:
    return Sampler(vocab_size, torch.device("cpu"), slots)


def kernels(vocab_size: int, slots: int) -> Sampler:
    from gradus.sampling.kernel_sampler import KernelSampler  # here: Triton is not everywhere

    return KernelSampler(vocab_size, torch.device("cuda"), slots)
