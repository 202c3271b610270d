"""GPTQ: round one column after the other, and let the columns that are still to come make up for each error.

GPTQ minimizes the error of the layer's output, so errors of two weights may cancel if their inputs move together. How
inputs move together is in H = 2 Xᵀ X / T. Once column k is rounded, with an error e, the best change of the later
weights is - e · U[k, later] / U[k, k], where Uᵀ U = H⁻¹ (upper Cholesky factor). The derivation is in calibration.md.
(Frantar et al. 2022, "GPTQ: accurate post-training quantization for generative pre-trained transformers".)

Shapes: T tokens, N outputs, K input channels, G groups.
"""

import torch
from torch import Tensor

from phases.p07_quantization.rounding import GROUP, grid, nearest

DAMPING = 0.01  # of the mean of H's diagonal, added to it


def hessian(x: Tensor) -> Tensor:
    """[T, K] inputs → [K, K], second derivatives of the squared output error by the weights of one row."""
    return 2 * x.T @ x / len(x)


def influence(h: Tensor) -> Tensor:
    """U [K, K], upper triangular, with Uᵀ U = H⁻¹: row k says what an error in column k asks of the later columns.

    Damping keeps H invertible where channels were always zero, or fewer tokens were seen than there are channels.
    """
    damped = h + DAMPING * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype, device=h.device)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


def column_step(w: Tensor, column: int, u: Tensor, scale: Tensor, offset: Tensor, bits: int = 4) -> Tensor:
    """Round one column of w, and change the later columns so that the output changes least. w is changed in place.

    w: [N, K], with the changes that earlier columns have asked for. u: [K, K], see `influence`. scale, offset: [N], the
    grid of each row's group. Returns the column's codes [N].
    """
    codes = nearest(w[:, column], scale, offset, bits)
    error = w[:, column] - (codes * scale + offset)
    w[:, column + 1 :] -= (error / u[column, column])[:, None] * u[column, column + 1 :]
    return codes


def quantize(w: Tensor, x: Tensor, group: int = GROUP, bits: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """w: [N, K]; x: [T, K], inputs that the layer has seen. Returns codes [N, K] uint8, scale and offset [N, G].

    A group's grid is chosen when its first column's turn comes, from the weights as they are then, and stays. Within a
    group each error is handed on at once. The columns behind it need their part only later, so they get that of the
    whole group in one product: the same sums, with far less traffic than moving all of them once per column.
    """
    w, u = w.clone(), influence(hessian(x))
    codes, scales, offsets = torch.empty_like(w), [], []
    for start in range(0, w.shape[1], group):
        block, behind = slice(start, start + group), slice(start + group, None)
        part, own = w[:, block], u[block, block]  # of the same memory: what changes in `part` changes in w
        scale, offset = grid(part, bits)
        for column in range(part.shape[1]):
            codes[:, start + column] = column_step(part, column, own, scale, offset, bits)
        errors = part - (codes[:, block] * scale[:, None] + offset[:, None])  # each column as it was at its turn
        w[:, behind] -= (errors / own.diagonal()) @ u[block, behind]
        scales.append(scale)
        offsets.append(offset)
    return codes.to(torch.uint8), torch.stack(scales, dim=1), torch.stack(offsets, dim=1)
