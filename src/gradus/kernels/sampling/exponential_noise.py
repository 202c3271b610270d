"""The noise of `gradus.kernels.sampling.noise`, bit for bit, made where a kernel uses it."""

import triton
import triton.language as tl
from triton.language import tensor


@triton.jit
def exponential_noise(seed: tensor, position: tensor, counter: tensor) -> tensor:
    """Exp(1) noise, float32 [4 N], of tokens 4 counter, …, 4 counter + 3 for each int32 counter [N]."""
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + position.to(tl.int32), zero, zero)
    bits = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return -tl.log(((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07)  # 2⁻²³
