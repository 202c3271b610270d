"""Numbers that kernels share."""

from triton.language import constexpr

LOG2_E = constexpr(1.4426950408889634)  # exp(x) = exp2(x log2 e), and the hardware has only exp2
INFINITY = constexpr(float("inf"))
