"""A token becomes a row of D numbers, and a row is brought to a common size before each step that reads it."""

from torch import Tensor


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """token_ids: [T], table: [V, D] → [T, D]. Row i is the table's row number token_ids[i]."""
    return table[token_ids]  # [T, D]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · weight, each row by itself. x: [T, D], weight: [D] → [T, D]."""
    mean_square = x.square().mean(dim=-1, keepdim=True)  # [T, D] → [T, 1], one number per row
    return x / (mean_square + eps).sqrt() * weight  # [T, D] / [T, 1] · [D] → [T, D]
