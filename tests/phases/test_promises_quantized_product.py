"""The promises of p07's fused product: codes are multiplied as they are packed, several at a time."""

from time import perf_counter

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from gradus.models import MatrixId
from phases.p07_quantization import engine, fused
from phases.p07_quantization.linears import Int4Linear, Int8Linear
from tests.phases.conftest import of, tiny_model

FLOAT = np.dtype("float32")


def halves(*values: float) -> np.ndarray:
    """The bits of float16."""
    return np.array(values, dtype=np.float16).view(np.uint16)


def filled(even: float, odd: float, groups: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `split` gives for rows of x whose even columns are equal, and whose odd ones are."""
    columns = 32 * groups
    sums = np.full(groups, 32 * (even + odd), FLOAT)
    return np.full(columns, even, FLOAT), np.full(columns, odd, FLOAT), sums


def made(kind: type[Int4Linear], w: Tensor, bias: bool = False) -> Int4Linear:
    linear = kind(MatrixId("down", 0), w.shape[1], (len(w),), bias)
    linear.assign("weight", 0, w)
    return linear


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@of("p07")
def test_x_is_cut_into_its_even_and_its_odd_columns(phase):
    even, odd, _ = fused.split(np.arange(128, dtype=FLOAT).reshape(2, 64))
    found = [[float(each) for each in part[1, :3]] for part in (even, odd)]
    wanted = [[64.0, 66.0, 68.0], [65.0, 67.0, 69.0]]
    assert found == wanted, f"a row of 64, 65, 66 …: even and odd columns begin {wanted}; yours: {found}"
    assert even.shape == odd.shape == (2, 32), f"two rows of 64 are two of 32 twice; yours: {even.shape}, {odd.shape}"


@of("p07")
def test_each_group_of_x_has_its_own_sum(phase):
    x = np.ones((2, 192), FLOAT)
    x[1, 64:] *= 2
    _, _, sums = fused.split(x)
    wanted = [[64.0, 64.0, 64.0], [64.0, 128.0, 128.0]]
    assert sums.tolist() == wanted, f"two rows of three groups, of ones and of twos: {wanted}; yours: {sums.tolist()}"


@of("p07")
def test_low_halves_meet_even_columns_and_high_halves_odd_ones(phase):
    codes = np.full(32, 0x72, np.uint8)
    found = float(fused.dot(codes, halves(1), halves(0), *filled(1, 10)))
    assert found == 2304, f"32 bytes 0x72, even columns 1, odd ones 10: 32 (2 · 1 + 7 · 10) = 2304; yours: {found:g}"


@of("p07")
def test_scale_and_offset_take_part_once_per_group(phase):
    codes = np.full(32, 0x72, np.uint8)
    found = float(fused.dot(codes, halves(0.5), halves(-1), *filled(1, 10)))
    assert found == 800, f"scale 0.5, offset -1, Σ code · x = 2304, Σ x = 352: 1152 - 352 = 800; yours: {found:g}"


@of("p07")
def test_every_group_is_multiplied_by_its_own_scale_and_offset(phase):
    codes = np.full(64, 0x11, np.uint8)
    found = float(fused.dot(codes, halves(1, 2), halves(0, 3), *filled(1, 1, groups=2)))
    assert found == 384, (
        f"codes of 1, x of 1: 64 from the first group, 64 · 2 + 64 · 3 from the second; yours {found:g}"
    )


@njit
def one_at_a_time(codes, even, odd):
    """The inner sums without vectors: without `fastmath`, additions keep their order."""
    total = np.float32(0)
    for i in range(len(codes)):
        total += np.float32(codes[i] & 15) * even[i] + np.float32(codes[i] >> 4) * odd[i]
    return total


def least_seconds(product, *operands) -> float:
    """The shortest of many runs, each of some microseconds: a busy machine makes most of them longer, never all."""
    product(*operands)  # compiles
    taken = []
    for _ in range(300):
        began = perf_counter()
        product(*operands)
        taken.append(perf_counter() - began)
    return min(taken)


@of("p07")
def test_the_compiled_loop_takes_several_codes_at_a_time(phase):
    """Else it is right, and twenty times slower than it could be."""
    groups = 96
    codes, x = np.full(32 * groups, 0x72, np.uint8), filled(1, 10, groups)
    taken = least_seconds(fused.dot, codes, halves(*[1] * groups), halves(*[0] * groups), *x)
    times = least_seconds(one_at_a_time, codes, *x[:2]) / taken
    assert times > 2, (
        f"it takes 1 / {times:.1f} of a loop's time that takes one code after the other; more than 1 / 2 means that "
        "the compiler made no vectors: let it see a constant length, range(BYTES), over slices that begin at 0, and "
        "np.uint8 around each code"
    )


@of("p07")
@pytest.mark.parametrize("rows", [1, 3, 4, 17])
def test_the_product_is_that_of_the_dequantized_matrix(phase, rows):
    w, x = normal(96, 256), normal(rows, 256, seed=1)
    linear = made(fused.FusedInt4Linear, w)
    wanted = x.double() @ linear.dequantized().double().T
    off = float((linear(x).double() - wanted).norm() / wanted.norm())
    assert off < 1e-5, f"{rows} rows of x: the product of codes is that of their weights; yours is off by {off:.2g}"


def test_a_float16_is_read_from_its_bits():
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[np.isfinite(every.view(np.float16))]
    found = np.array([fused.to_float.py_func(int(bits)) for bits in finite[::7]])
    assert np.array_equal(found, finite[::7].view(np.float16).astype(np.float32))


def test_codes_become_the_row_that_torch_makes_of_them():
    linear, wide = made(fused.FusedInt4Linear, normal(1, 192)), torch.empty(192)
    fused.widen(linear.weight[0].numpy(), *map(fused.bits_of, (linear.scale[0], linear.offset[0])), wide.numpy())
    assert torch.allclose(wide, linear.dequantized()[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("outputs", "rows"), [(1, 2), (3, 5), (4, 4), (6, 7), (9, 8)])
def test_tiles_that_do_not_fit_leave_nothing_out(outputs, rows):
    linear, x = made(fused.FusedInt4Linear, normal(outputs, 128)), normal(rows, 128, seed=4)
    y = torch.full((rows, outputs), torch.nan)
    stored = linear.weight.numpy(), fused.bits_of(linear.scale), fused.bits_of(linear.offset)
    fused.multiply_many(*stored, x.numpy(), y.numpy())
    assert torch.allclose(y, x @ linear.dequantized().T, atol=1e-4)


def test_the_bias_is_added_and_the_type_is_that_of_x():
    linear = made(fused.FusedInt4Linear, normal(8, 64), bias=True)
    linear.assign("bias", 0, torch.arange(8.0))
    plain = made(Int4Linear, normal(8, 64), bias=True)
    plain.assign("bias", 0, torch.arange(8.0))
    for rows in (1, 2, 7):
        x = normal(rows, 64, seed=2)
        assert torch.allclose(linear(x), plain(x), atol=1e-4)
    without = made(fused.FusedInt4Linear, normal(8, 64))
    assert {without(normal(rows, 64).bfloat16()).dtype for rows in (1, 2)} == {torch.bfloat16}


def test_groups_without_a_loop_are_widened_by_torch():
    linear, x = made(fused.FusedInt4Linear, normal(4, 96)), normal(2, 96, seed=3)
    assert linear.group == 32 and torch.equal(linear(x), made(Int4Linear, normal(4, 96))(x))


def test_four_bits_are_for_models_that_gain_from_them():
    model = tiny_model("tiny-llama")
    assert engine.linear_for(model) is Int8Linear


def test_the_file_is_short_enough_to_have_been_written_by_its_reader():
    with open(fused.__file__, encoding="utf-8") as file:
        assert len(file.readlines()) <= 150
