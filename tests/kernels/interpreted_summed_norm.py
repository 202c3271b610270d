"""Run by test_summed_norm.py in a process of its own, where Triton interprets: several ranks in one process, in turn.

A rank that runs before the others have sent anything would wait for ever. So a test delivers what the others will send
itself, in the documented form, and then runs them one after the other: what each really sends must be the same words.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from gradus.kernels.rows.reference import summed_reference, summed_rms_norm_reference
from gradus.kernels.rows.summed_norm import (
    Inboxes,
    summed,
    summed_rms_norm,
    summed_rows,
)

ROWS, CAPACITY = 4, 96
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def ranks(count: int, capacity: int = CAPACITY) -> list[Inboxes]:
    boxes = torch.zeros(count, 2, count, ROWS, capacity, dtype=torch.int64)
    addresses = torch.tensor([box.data_ptr() for box in boxes])
    return [
        Inboxes(rank, boxes[rank], addresses, torch.zeros(ROWS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
        for rank in range(count)
    ]


def deliver(inboxes: Inboxes, parts: Tensor) -> None:
    """Write what the other ranks send in the next call to an inbox."""
    for rank, part in enumerate(parts):
        words = part.contiguous().view(torch.int32).long() & 0xFFFFFFFF
        for row, each in enumerate(words):
            epoch = int(inboxes.epochs[row]) + 1
            if rank != inboxes.rank:
                inboxes.words[epoch & 1, rank, row, : len(each)] = (epoch << 32) | each


def on_all(each: list[Inboxes], parts: Tensor, compute) -> list:
    """compute(rank) on every rank, which must send the words that were delivered in its name."""
    for inboxes in each:
        deliver(inboxes, parts)
    expected = [inboxes.words.clone() for inboxes in each]
    results = [compute(rank) for rank in range(len(each))]
    for inboxes, words in zip(each, expected, strict=True):
        assert torch.equal(inboxes.words, words)
        assert not inboxes.stop.any()
    return results


def assert_close(found: Tensor, wanted: Tensor) -> None:
    error = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < (1e-6 if found.dtype == torch.float32 else 1e-2), f"off by {error:.1e}"


def normalized(each: list[Inboxes], parts: Tensor, streams: list[Tensor], weight: Tensor, rank: int) -> Tensor:
    return summed_rms_norm(parts[rank], each[rank], streams[rank], weight, 1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [2, 3])
def test_all_ranks_get_the_sum_the_new_stream_and_its_norm(count, dtype):
    each, weight = ranks(count), torch.randn(80).to(dtype)
    for rows in (1, 3, 2, 3):  # each row counts its own calls
        parts, stream = torch.randn(count, rows, 80).to(dtype), torch.randn(rows, 80).to(dtype)
        streams = [stream.clone() for _ in each]
        found = on_all(each, parts, partial(normalized, each, parts, streams, weight))
        wanted = summed_rms_norm_reference(parts, stream, weight, 1e-5)
        assert_close(found[0], wanted)
        assert_close(streams[0], stream)
        assert all(torch.equal(other, found[0]) for other in found)
        assert all(torch.equal(other, streams[0]) for other in streams)
    assert each[0].epochs.tolist() == [4, 3, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_alone_is_in_rank_order(dtype):
    each = ranks(3)
    parts = torch.tensor([2.0**24, 1.0, -(2.0**24)])[:, None, None].expand(3, 2, 48).to(dtype).contiguous()
    found = on_all(each, parts, lambda rank: summed(parts[rank], each[rank]))
    assert torch.equal(found[0], summed_reference(parts)) and all(torch.equal(other, found[0]) for other in found)
    assert not found[0].any(), "2^24 + 1 is 2^24 in float32, so in another order it is 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_that_ranks_share_is_looked_up_exactly(dtype):
    each, table, ids = ranks(2), torch.randn(10, 48).to(dtype), torch.tensor([7, 0, 9, 4])
    tables = table.view(2, 5, 48).contiguous()
    parts = torch.stack([torch.where((ids // 5 == rank)[:, None], table[ids], 0) for rank in range(2)])
    found = on_all(each, parts, lambda rank: summed_rows(ids, tables[rank], 5 * rank, each[rank]))
    assert all(torch.equal(rows, table[ids]) for rows in found)


def test_waiting_ends_when_the_host_says_so():
    each = ranks(2)
    each[0].stop.fill_(1)
    summed(torch.ones(1, 4), each[0])  # returns, though rank 1 never sends
    assert each[0].epochs[0] == 1
