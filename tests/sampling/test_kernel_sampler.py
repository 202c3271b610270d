"""What the kernel reads lies in tables of a fixed place, with a row for padding. The drawing is tested on a GPU."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus.engine.plan import Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.sampling.kernel_sampler import KernelSampler


def test_there_is_a_row_for_padding_behind_the_slots():
    sampler = KernelSampler(50, torch.device("cpu"), slots=4)
    request = Request.create("r", [1, 2], SamplingParams(seed=7, temperature=0.5), ModelLimits(50, 40))
    place = sampler.table.seeds.data_ptr()
    sampler.admit([Admission(3, request, 0, request.prompt)])
    assert sampler.table.rows > 4 and sampler.table.seeds.data_ptr() == place
    assert sampler.table.seeds[3:5].tolist() == [7, 0] and sampler.table.temperatures[3:5].tolist() == [0.5, 0]
