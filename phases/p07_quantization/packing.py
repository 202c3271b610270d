"""Two codes of four bits in one byte. No processor has a type of four bits, so they are packed and unpacked by hand."""

import torch
from torch import Tensor


def pack(codes: Tensor) -> Tensor:
    """[N, K] uint8, each below 16 → [N, K / 2] uint8. Byte i: code 2i in its low half, code 2i + 1 in its high half."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """[N, K / 2] uint8 → [N, K] uint8: the codes, in their old order."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
