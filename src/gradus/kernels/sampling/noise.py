"""Random numbers without a generator: noise is a function of (seed, position, token), and of nothing else.

A shared generator would make a request's tokens depend on its neighbors, on preemption and on the order of steps. A
counter-based generator has no state to share: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3") enciphers a counter with a key, on any device, in any order, with the same result.
"""

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for each counter; all tensors int64 holding 32-bit words, of shapes that broadcast.

    A 32 x 32 bit product may wrap int64's sign; its low and high words are right all the same.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (
            (second >> 32 & _MASK) ^ c1 ^ k0,
            second & _MASK,
            (first >> 32 & _MASK) ^ c3 ^ k1,
            first & _MASK,
        )
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def exponential(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Exp(1) noise, float32 [R, V]: row r belongs to (seeds[r], positions[r]), both int64 [R]; seeds hold 64 bits.

    Token t takes word t % 4 of counter t // 4, so a quarter as many ciphers as tokens are computed.
    """
    blocks = torch.arange((vocab_size + 3) // 4, device=seeds.device)
    position = positions.unsqueeze(1)
    zero = torch.zeros_like(position)
    key = (seeds & _MASK).unsqueeze(1), (seeds >> 32 & _MASK).unsqueeze(1)
    words = philox((blocks.unsqueeze(0), position & _MASK, zero, zero), key)
    bits = torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(1)[:, :vocab_size]
    # 23 bits and a half: exact in float32, never 0 and never 1, so the logarithm is finite and negative
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -uniform.log()
