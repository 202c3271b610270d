"""Zeros that take memory as they are written to."""

import os

import pytest
import torch

from gradus.device.zeros import zeros

CPU = torch.device("cpu")
HALF_A_GIGABYTE = (1 << 29) // 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_they_are_zeros_that_can_be_written_to(dtype):
    made = zeros((3, 2, 5), dtype, CPU)
    assert (made.shape, made.dtype, made.device) == ((3, 2, 5), dtype, CPU)
    assert made.is_contiguous() and not made.float().any()
    made[1] = 1
    assert made.float().sum() == 10


def test_there_may_be_none():
    assert zeros((0, 4), torch.float32, CPU).shape == (0, 4)


def test_memory_is_taken_by_what_is_written_to_and_given_back(process):
    before = process.memory_info().rss
    made = zeros((HALF_A_GIGABYTE,), torch.float32, CPU)
    assert process.memory_info().rss - before < 1 << 26
    made[: HALF_A_GIGABYTE // 4] = 1
    assert process.memory_info().rss - before > 1 << 26
    del made
    assert process.memory_info().rss - before < 1 << 26


def test_more_than_can_be_addressed_is_an_allocation_that_failed():
    with pytest.raises(MemoryError, match="memory"):
        zeros((1 << 50,), torch.float32, CPU)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_has_its_own():
    made = zeros((8,), torch.float32, CPU)
    child = os.fork()
    if child == 0:
        made.numpy()[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert not made.any()
