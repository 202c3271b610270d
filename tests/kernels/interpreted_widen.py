"""Pages of 8 bits, widened for the kernel of Hopper."""

import torch

from gradus.kernels.attention.widen import widen_pages
from gradus.quantization.kv import from_e4m3, to_e4m3


def kept(pages: int, heads: int, head_dim: int) -> tuple:
    """Keys or values of 8 bits, their scales by head, and their product in bfloat16."""
    values, scales = to_e4m3(torch.randn(pages, 16, heads, head_dim) * 10)
    exact = from_e4m3(values, scales, out=torch.empty(values.shape))
    return values, scales.transpose(1, 2).contiguous(), exact.bfloat16()


def test_a_sequence_s_pages_come_in_its_table_s_order_and_others_stay_as_they_were():
    keys, values = kept(9, 3, 32), kept(9, 3, 32)
    tables = torch.tensor([[1, 2, 3, 4, 0], [5, 8, 6, 7, 0]])
    out = torch.full((2, 5, 16, 3, 32), -7.0, dtype=torch.bfloat16)
    slot, length = torch.tensor([1], dtype=torch.int32), torch.tensor([50], dtype=torch.int32)
    widen_pages((keys[0], values[0]), (keys[1], values[1]), (out[0], out[1]), tables, slot, length)
    for found, (_, _, exact) in zip(out, (keys, values), strict=True):
        assert torch.equal(found[:4], exact[[5, 8, 6, 7]])
        assert (found[4] == -7).all()


def test_pages_that_no_query_sees_are_left_out():
    keys, values = kept(6, 1, 64), kept(6, 1, 64)
    out = torch.full((2, 4, 16, 1, 64), -7.0, dtype=torch.bfloat16)
    slot, length = torch.zeros(1, dtype=torch.int32), torch.tensor([64], dtype=torch.int32)
    widen_pages(
        (keys[0], values[0]), (keys[1], values[1]), (out[0], out[1]), torch.tensor([[0, 5, 1, 2]]), slot, length, 33
    )
    assert (out[:, 0] == -7).all()
    assert torch.equal(out[0, 1:], keys[2][[5, 1, 2]]) and torch.equal(out[1, 1:], values[2][[5, 1, 2]])
