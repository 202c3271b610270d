"""Measured on one NVIDIA H200; written by benchmarks/fused_kernels.py."""

from gradus.kernels.gemv import GemvLaunch as G
from gradus.kernels.skinny import SkinnyLaunch as S

ROWS = (1, 8, 16, 32, 64)
MEASURED: dict[tuple[int, int], dict[int, G | S | None]] = {
    (2048, 2048): {1: G(1, 2048, 4), 8: S(64, 128, 4, 4, 4), 16: S(64, 128, 4, 4, 4), 32: S(64, 128, 4, 4, 4), 64: None}
}
GEMV: dict[tuple[int, int], G] = {(2048, 2048): G(1, 2048, 4)}
