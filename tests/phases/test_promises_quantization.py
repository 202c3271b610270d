"""The promises of p07's parts: grids, packed codes, AWQ's factors and GPTQ's columns, each small enough to check by
hand.

test_quantized.py tests that the resulting model gives the same tokens as its dequantized copy.
"""

import pytest
import torch
from torch import Tensor

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.request import Request, SamplingParams
from phases.p07_quantization import awq, gptq, packing, quality, rounding
from tests.phases.conftest import limits_of, of, tiny_model
from tests.phases.drive import run

SHAPE = "tiny-llama"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- round to nearest --------------------------------------------------------------------------------------------------


@of("p07")
def test_the_grid_of_a_group_begins_at_its_smallest_weight_and_ends_at_its_largest(phase):
    scale, offset = rounding.grid(torch.tensor([[1.0, -0.5, 0.25, 0.0], [3.0, 18.0, 4.0, 4.5]]))
    assert offset.tolist() == [-0.5, 3.0], f"the offsets are [-0.5, 3.0]; yours are {offset.tolist()}"
    steps = [round(value, 6) for value in scale.tolist()]
    assert steps == [0.1, 1.0], f"15 steps from -0.5 to 1 and from 3 to 18: scales [0.1, 1.0]; yours are {steps}"


@of("p07")
def test_two_bits_make_a_grid_of_four_points(phase):
    scale, _ = rounding.grid(torch.tensor([0.0, 0.3, 0.6]), bits=2)
    assert round(float(scale), 6) == 0.2, f"three steps from 0 to 0.6: the scale is 0.2; yours is {float(scale):g}"


@of("p07")
def test_a_weight_gets_the_number_of_the_nearest_grid_point(phase):
    weights = torch.tensor([-0.5, -0.46, -0.44, 0.0, 0.96, 1.0])
    found = rounding.nearest(weights, torch.tensor(0.1), torch.tensor(-0.5)).tolist()
    wanted = [0, 0, 1, 5, 15, 15]
    assert found == wanted, f"on the grid -0.5, -0.4 … 1.0 the codes are {wanted}; yours are {found}"


@of("p07")
def test_a_weight_beyond_the_grid_gets_its_first_or_its_last_point(phase):
    found = rounding.nearest(torch.tensor([-9.0, 9.0]), torch.tensor(0.1), torch.tensor(-0.5)).tolist()
    assert found == [0, 15], f"four bits end at 0 and 15, also for weights beyond: [0, 15]; yours are {found}"


@of("p07")
def test_codes_become_the_weights_of_their_own_group_again(phase):
    codes = torch.tensor([[0, 15, 1, 2]], dtype=torch.uint8)
    scale, offset = torch.tensor([[0.1, 2.0]]), torch.tensor([[-0.5, 7.0]])
    found = [round(value, 6) for value in rounding.dequantize_groups(codes, scale, offset)[0].tolist()]
    assert found == [-0.5, 1.0, 9.0, 11.0], f"two groups of two: [-0.5, 1.0, 9.0, 11.0]; yours: {found}"


@of("p07")
def test_no_weight_is_off_by_more_than_half_a_step_of_its_group(phase):
    w = normal(5, 96) * torch.tensor([1.0, 20.0, 0.01]).repeat_interleave(32)
    codes, scale, offset = rounding.quantize_groups(w, group=32)
    off = (rounding.dequantize_groups(codes, scale, offset) - w).abs().unflatten(1, (3, 32)).amax(2) / scale
    assert off.max() < 0.5 + 1e-6, f"half a step is the most; yours is off by {float(off.max()):.2f} steps"
    assert codes.min() == 0 and codes.max() == 15, "every group's smallest weight is 0, its largest 15"


@of("p07")
def test_a_group_of_equal_weights_comes_back_as_it_was(phase):
    scale, _ = rounding.grid(torch.full((64,), 0.7))
    assert scale > 0, f"the scale of 64 equal weights is divided by, so it is above 0; yours is {float(scale):g}"
    w = torch.full((2, 64), 0.7)
    back = rounding.dequantize_groups(*rounding.quantize_groups(w))
    assert torch.allclose(back, w), f"64 times 0.7 has a grid of one point, 0.7; yours gives {float(back[0, 0]):g}"


@of("p07")
def test_a_byte_per_weight_keeps_a_row_within_a_hundredth_of_its_size(phase):
    w = normal(4, 256)
    back = rounding.dequantize_rows(*rounding.quantize_rows(w))
    off = float((back - w).norm() / w.norm())
    assert 0.001 < off < 0.01, f"yours is off by {off:.2%}"


@of("p07")
def test_an_outlier_costs_its_own_group_and_no_other(phase):
    w = normal(1, 128)
    w[0, 3] = 100.0
    off = (rounding.dequantize_groups(*rounding.quantize_groups(w, group=64)) - w).abs()[0]
    assert off[:64].max() > 1.0 > 0.3 > off[64:].max()


# -- packing -----------------------------------------------------------------------------------------------------------


@of("p07")
def test_two_codes_share_a_byte_the_first_in_its_low_half(phase):
    packed = packing.pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8))
    found = [f"{byte:#04x}" for byte in packed[0].tolist()]
    assert found == ["0x21", "0x0f"], f"codes 1, 2, 15, 0 are the bytes 0x21 and 0x0f; yours are {found}"
    assert packed.dtype == torch.uint8


@of("p07")
def test_a_byte_is_two_codes_again_in_their_old_order(phase):
    found = packing.unpack(torch.tensor([[0x21, 0x0F]], dtype=torch.uint8)).tolist()
    assert found == [[1, 2, 15, 0]], f"the bytes 0x21 and 0x0f are the codes 1, 2, 15, 0; yours are {found}"


@of("p07")
def test_every_pair_of_codes_comes_back(phase):
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16)).to(torch.uint8)
    codes = torch.cat((pairs, pairs.flip(0)), dim=1)
    packed = packing.pack(codes)
    assert packed.shape == (256, 2), f"4 codes take 2 bytes; yours take {packed.shape[1]}"
    assert torch.equal(packing.unpack(packed), codes), "packed and unpacked, some codes are not what they were"


# -- AWQ ---------------------------------------------------------------------------------------------------------------


def loud_layer(outputs: int = 24, channels: int = 256, tokens: int = 300) -> tuple[Tensor, Tensor]:
    """Return inputs [T, K] with one channel many times larger than the others, and weights [N, K]."""
    x = normal(tokens, channels, seed=1)
    x[:, 7] *= 60
    return x, normal(outputs, channels, seed=2)


@of("p07")
def test_factors_follow_from_the_sizes_of_inputs_and_weights(phase):
    x_size, w_size = torch.tensor([4.0, 1.0]), torch.tensor([0.25, 0.25])
    for ratio, wanted in ((0.0, [1.0, 1.0]), (0.5, [1.414, 0.707]), (1.0, [2.0, 0.5])):
        found = [round(value, 3) for value in awq.factors_at(ratio, x_size, w_size).tolist()]
        assert found == wanted, f"inputs of 4 and 1, equal weights, ratio {ratio}: {wanted}; yours: {found}"


@of("p07")
def test_columns_of_small_weights_get_larger_factors(phase):
    """Equal inputs, ratio 0.25: the factors go with one over the weights' sizes to the power of 0.75."""
    found = awq.factors_at(0.25, torch.ones(2), torch.tensor([0.01, 0.16])).tolist()
    assert abs(found[0] / found[1] - 8) < 0.1, f"sizes 0.01 and 0.16: the first is 8 times the second; yours: {found}"


@of("p07")
def test_a_silent_channel_has_a_factor_that_can_be_divided_by(phase):
    found = awq.factors_at(1.0, torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]))
    assert bool(found.isfinite().all()) and float(found.min()) > 0, f"factors are above 0; yours are {found.tolist()}"


@of("p07")
def test_what_the_factors_widened_is_narrowed_again(phase):
    w, factors = normal(3, 64), torch.linspace(0.2, 5, 64, dtype=torch.float64)
    off = float((awq.rounded(w, factors, bits=8) - w).norm() / w.norm())
    assert off < 0.1, f"with eight bits the matrix is nearly what it was; yours is off by {off:.0%}"


def off(x: Tensor, w: Tensor, factors: Tensor) -> float:
    return float((x @ (awq.rounded(w, factors) - w).T).square().mean())


def proposals(x: Tensor, w: Tensor) -> list[Tensor]:
    """List the factors that the search tries: plain rounding's, then those of each exponent."""
    x_size, w_size = x.abs().mean(0), awq.size_in_group(w)
    return [torch.ones_like(x_size), *(awq.factors_at(ratio, x_size, w_size) for ratio in awq.RATIOS)]


@of("p07")
def test_the_search_finds_the_least_error_of_the_output(phase):
    x, w = loud_layer()
    plain, *others = (off(x, w, factors) for factors in proposals(x, w))
    found = off(x, w, awq.search(x, w))
    assert found <= min(others) * 1.0001, f"the least error is {min(others):.3f}, plain {plain:.3f}; yours {found:.3f}"
    assert found < plain / 2, f"one channel is loud: factors bring {plain:.2f} below a half of it; yours: {found:.2f}"


@of("p07")
def test_the_search_tries_every_exponent(phase):
    """The error does not fall and then rise: here the first exponent is worse than none, and the ninth the best."""
    x, w = normal(60, 64, seed=3), normal(8, 64, seed=53) * 0.1
    x[:, 3] *= 20
    errors = [off(x, w, factors) for factors in proposals(x, w)]
    found, least = off(x, w, awq.search(x, w)), min(errors)
    assert found <= least * 1.0001, (
        f"plain rounding and the exponents in turn are off by {', '.join(f'{each:.4f}' for each in errors[:10])} …: "
        f"the least is {least:.4f}; yours has {found:.4f}"
    )


@of("p07")
def test_factors_are_those_of_mean_inputs_and_of_weights_relative_to_their_group(phase):
    x, w = loud_layer()
    found, tried = awq.search(x, w), proposals(x, w)
    assert any(torch.allclose(found, factors) for factors in tried), (
        "the search returns what factors_at proposes for each channel's mean |x| and size_in_group(w), at one of the "
        f"RATIOS; yours are of none of them: {[round(value, 3) for value in found[5:9].tolist()]} for channels 5 to 8"
    )


@of("p07")
def test_the_search_knows_that_errors_of_channels_that_move_together_may_cancel(phase):
    """Weighing each weight's error by its input is not enough."""
    x, w = loud_layer()
    x += 3 * x.std() * normal(len(x), 1, seed=1)
    tried = [awq.factors_at(ratio, x.abs().mean(0), awq.size_in_group(w)) for ratio in awq.RATIOS]
    least = min(awq.output_error(x, w, awq.rounded(w, factors)) for factors in tried)
    found = awq.output_error(x, w, awq.rounded(w, awq.search(x, w)))
    assert found <= least * 1.0001, f"channels move together: an output's least error is {least:.0f}; yours {found:.0f}"


@of("p07")
def test_plain_rounding_stays_where_no_factors_are_better(phase):
    """Weights that are on a grid of their group already: any factors would take them off it."""
    codes = torch.randint(0, 16, (8, 64), generator=torch.Generator().manual_seed(3))
    codes[:, 0], codes[:, 1] = 0, 15
    found = awq.search(normal(50, 64), codes.double() * 0.1 - 0.7)
    assert torch.equal(found, torch.ones_like(found)), f"factors of 1 lose nothing here; yours: {found[:3].tolist()} …"


# -- GPTQ --------------------------------------------------------------------------------------------------------------


def mixed_inputs(tokens: int = 300, channels: int = 64) -> Tensor:
    """[T, K]: channels that move together, since all are mixed from eight sources."""
    return normal(tokens, 8, seed=4) @ normal(8, channels, seed=5) + 0.3 * normal(tokens, channels, seed=6)


@of("p07")
def test_an_error_moves_the_columns_behind_it_by_their_entries_of_u(phase):
    w = torch.tensor([[0.34, 1.0, 1.0], [0.9, 1.0, 1.0]])
    u = torch.tensor([[2.0, 1.0, -4.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    codes = gptq.column_step(w, 0, u, torch.tensor([0.1, 0.1]), torch.tensor([0.0, 0.0]))
    assert codes.tolist() == [3, 9], f"0.34 and 0.9 on a grid of 0.1 are codes 3 and 9; yours are {codes.tolist()}"
    found = [round(value, 4) for value in w[0, 1:].tolist()]
    assert found == [0.98, 1.08], f"the error 0.04 is taken from 1 half, and -2 times: [0.98, 1.08]; yours: {found}"
    rest = [round(value, 4) for value in w[1, 1:].tolist()]
    assert rest == [1.0, 1.0], f"a row whose weight is on the grid stays as it is: [1.0, 1.0]; yours: {rest}"


@of("p07")
def test_columns_before_the_step_stay_as_they_are(phase):
    w, u = normal(4, 6), torch.triu(normal(6, 6, seed=1)).abs() + torch.eye(6, dtype=torch.float64)
    before = w.clone()
    gptq.column_step(w, 3, u, torch.full((4,), 0.2, dtype=torch.float64), torch.full((4,), -1.5, dtype=torch.float64))
    assert torch.equal(w[:, :3], before[:, :3]), "columns 0 to 2 are rounded already, and yours changed them"
    assert not torch.equal(w[:, 4:], before[:, 4:]), "columns 4 and 5 make up for the error of column 3"


@of("p07")
def test_later_columns_make_up_for_an_error_as_well_as_any_could(phase):
    """Solved directly: the change d of the others that minimizes |d · X_others - error · x_0|."""
    x, w = mixed_inputs(channels=6), normal(3, 6)
    h = gptq.hessian(x)
    h += gptq.DAMPING * h.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    before, scale = w.clone(), torch.full((3,), 0.4, dtype=torch.float64)
    codes = gptq.column_step(w, 0, gptq.influence(gptq.hessian(x)), scale, -8 * scale)
    error = before[:, 0] - (codes - 8) * scale
    wanted = before[:, 1:] + error[:, None] * torch.linalg.solve(h[1:, 1:], h[0, 1:])
    off = float((w[:, 1:] - wanted).norm() / error.norm())
    assert off < 1e-6, f"the best change is the least-squares one; yours is off by {off:.2g} times the error"


@of("p07")
def test_a_weight_that_was_moved_beyond_the_grid_hands_on_the_whole_distance(phase):
    w, u = torch.tensor([[2.5, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    codes = gptq.column_step(w, 0, u, torch.tensor([0.1]), torch.tensor([0.0]))
    assert codes.tolist() == [15], f"the grid ends at 15, which is 1.5; yours has {codes.tolist()}"
    assert round(float(w[0, 1]), 4) == -1.0, f"2.5 is 1.0 above 1.5: the next becomes -1.0; yours {float(w[0, 1]):.4f}"


@of("p07")
def test_the_output_is_nearer_than_with_plain_rounding(phase):
    x, w = mixed_inputs(), normal(16, 64)
    plain = rounding.dequantize_groups(*rounding.quantize_groups(w, bits=3))
    fed_back = rounding.dequantize_groups(*gptq.quantize(w, x, bits=3))
    errors = [float((x @ (each - w).T).norm()) for each in (plain, fed_back)]
    assert errors[1] < 0.6 * errors[0], f"plain rounding is off by {errors[0]:.1f}, yours by {errors[1]:.1f}"


@of("p07")
def test_where_inputs_have_nothing_to_do_with_each_other_nothing_is_handed_on(phase):
    w = normal(5, 128)
    codes, scale, offset = gptq.quantize(w, torch.eye(128, dtype=torch.float64))
    plain = rounding.quantize_groups(w)
    assert torch.equal(codes, plain[0]) and torch.allclose(scale, plain[1]) and torch.allclose(offset, plain[2])


@of("p07")
def test_errors_that_reach_later_groups_together_are_those_of_one_column_after_the_other(phase):
    """The definition: every step changes all later columns, and a group's grid is computed when its turn comes."""
    x, w = mixed_inputs(channels=192), normal(6, 192)
    expected, u = w.clone(), gptq.influence(gptq.hessian(x))
    wanted = []
    for column in range(192):
        if column % 64 == 0:
            scale, offset = rounding.grid(expected[:, column : column + 64])
        wanted.append(gptq.column_step(expected, column, u, scale, offset))
    codes, _, _ = gptq.quantize(w, x)
    wrong = (codes != torch.stack(wanted, 1).to(torch.uint8)).any(0).nonzero().flatten().tolist()
    assert not wrong, (
        f"192 columns in groups of 64, each handing its error on to all columns behind it, also in later groups: the "
        f"codes of column {wrong[0]} are others in yours, and those of {len(wrong)} columns in all"
    )


@of("p07")
def test_a_group_has_the_grid_that_it_had_when_its_first_column_came(phase):
    """The second group's grid follows from weights that the first group's errors have moved."""
    x, w = mixed_inputs(channels=128), normal(4, 128)
    codes, scale, offset = gptq.quantize(w, x)
    assert codes.max() <= 15 and scale.shape == offset.shape == (4, 2)
    plain_scale, plain_offset = rounding.grid(w.unflatten(1, (2, 64)))
    assert torch.allclose(scale[:, 0], plain_scale[:, 0]) and torch.allclose(offset[:, 0], plain_offset[:, 0])
    assert not torch.allclose(scale[:, 1], plain_scale[:, 1])


# -- a whole model -----------------------------------------------------------------------------------------------------


def by_awq(x: Tensor, w: Tensor, bits: int) -> Tensor:
    return awq.rounded(w, awq.search(x, w, GROUP, bits), GROUP, bits)


def by_gptq(x: Tensor, w: Tensor, bits: int) -> Tensor:
    return rounding.dequantize_groups(*gptq.quantize(w, x, GROUP, bits))


GROUP = 32  # a tiny model's matrices are no multiples of 64 wide
SEEN = [7 * i % 320 for i in range(48)]


@of("p07")
@pytest.mark.parametrize("way", [by_awq, by_gptq])
def test_a_model_rounded_to_eight_bits_is_nearly_the_model_and_answers(phase, way):
    model = tiny_model(SHAPE)
    made = quality.rounded(model, quality.inputs_of(model, SEEN), way, 8)
    wanted, found = (quality.log_probabilities(each, SEEN) for each in (model, made))
    off = float((found - wanted).norm() / wanted.norm())
    assert off < 0.02, f"with eight bits the whole model is off by less than 2 %; yours is off by {off:.1%}"
    limits = limits_of(SHAPE)
    request = Request.create("a", SEEN[:9], SamplingParams(max_tokens=8, ignore_eos=True), limits)
    tokens = run(phases.load("p00").build(made, EngineOptions(limits)), [request])["a", 0].tokens
    assert len(tokens) == 8, f"the model answers with 8 tokens; yours with {len(tokens)}"
