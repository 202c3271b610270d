"""Every way of rounding on one made-up layer, in seconds: python -m phases.p07_quantization.one_layer

The layer has what real ones have: input channels that move together, and a few whose inputs are many times larger than
the others'. The lesson's figures are drawn from it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from phases.p07_quantization import awq, gptq
from phases.p07_quantization.rounding import dequantize_groups, dequantize_rows, quantize_groups, quantize_rows

TOKENS, INPUTS, OUTPUTS, SHARED = 512, 128, 64, 16  # SHARED: independent sources that the inputs are mixed from
LOUD = [5, 40, 97]  # the channels with large inputs
BITS = (2, 3, 4, 5, 6, 8)


def layer() -> tuple[Tensor, Tensor]:
    """x [T, K] and w [N, K] float64, so that every machine rounds the same weights the same way."""
    random = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x = normal(TOKENS, SHARED) @ normal(SHARED, INPUTS) / SHARED**0.5 + 0.5 * normal(TOKENS, INPUTS)
    x[:, LOUD] *= 12
    return x, 0.05 * normal(OUTPUTS, INPUTS)


Way = Callable[[Tensor, Tensor, int], Tensor]
"""Maps inputs [T, K], weights [N, K] and a number of bits to the weights that take their place."""

WAYS: dict[str, Way] = {
    "a scale per row": lambda x, w, bits: dequantize_rows(*quantize_rows(w, bits)),
    "a grid per group of 64": lambda x, w, bits: dequantize_groups(*quantize_groups(w, bits=bits)),
    "AWQ": lambda x, w, bits: awq.rounded(w, awq.search(x, w, bits=bits), bits=bits),
    "GPTQ": lambda x, w, bits: dequantize_groups(*gptq.quantize(w, x, bits=bits)),
}


def relative_error(x: Tensor, w: Tensor, instead: Tensor) -> float:
    """How far the outputs are off, as a part of their size: |x wᵀ - x insteadᵀ| / |x wᵀ|."""
    wanted = x @ w.T
    return float((x @ instead.T - wanted).norm() / wanted.norm())


def errors(bits: int) -> dict[str, float]:
    """The relative error of each way. Judged on tokens that AWQ and GPTQ have not seen: the second half of them."""
    x, w = layer()
    seen, unseen = x.chunk(2)
    return {name: relative_error(unseen, w, way(seen, w, bits)) for name, way in WAYS.items()}


if __name__ == "__main__":
    print("bits   " + "   ".join(WAYS))
    for count in BITS:
        row = (f"{error:.2%}".rjust(len(name)) for name, error in errors(count).items())
        print(f"{count:4}   " + "   ".join(row))
