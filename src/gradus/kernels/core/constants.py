"""Numbers that kernels share."""

from triton.language import constexpr

LOG2_E = constexpr(1.4426950408889634)  # exp(x) = exp2(x log2 e), and exp2 is what the hardware has
INFINITY = constexpr(float("inf"))
