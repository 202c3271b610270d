"""The promises of p07's floats of few bits and of its cache in fewer bits, each small enough to check by hand."""

import pytest
import torch
from torch import Tensor

from gradus.quantization import mxfp4 as engines
from phases.p00_baseline.no_cache import Recompute
from phases.p07_quantization import formats, kv, quality
from phases.p07_quantization.formats import E2M1, E4M3, E5M2
from tests.phases.conftest import of, tiny_model

TORCH = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
NAMES = {E4M3: "E4M3", E5M2: "E5M2", E2M1: "E2M1"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- which values there are --------------------------------------------------------------------------------------------


@of("p07")
def test_four_bits_have_eight_values_and_their_negatives(phase):
    found, wanted = formats.points(E2M1).tolist(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert found == wanted, f"E2M1's codes 0 to 7 are {wanted}; yours are {found}"


@of("p07")
@pytest.mark.parametrize("form", [E4M3, E5M2], ids=NAMES.get)
def test_eight_bits_have_the_values_that_torch_gives_their_codes(phase, form):
    found = formats.points(form).float()
    wanted = torch.arange(len(found)).to(torch.uint8).view(TORCH[form]).float()
    assert float(found[-1]) == form.largest, f"{NAMES[form]} ends at {form.largest:g}; yours at {float(found[-1]):g}"
    parted = (found != wanted).nonzero().flatten().tolist()
    first = parted[0] if parted else 0
    assert not parted, f"{NAMES[form]}: code {first} is {float(wanted[first]):g}; yours is {float(found[first]):g}"


# -- to the nearest ----------------------------------------------------------------------------------------------------


@of("p07")
def test_a_number_gets_the_code_of_the_nearest_point(phase):
    found = formats.encode(torch.tensor([0.2, 0.3, 1.3, 2.4, 2.6, 4.9, 5.1]), E2M1).tolist()
    wanted = [0, 1, 3, 4, 5, 6, 7]
    assert found == wanted, f"0.2, 0.3, 1.3, 2.4, 2.6, 4.9, 5.1 have the codes {wanted}; yours are {found}"


@of("p07")
def test_halfway_between_two_points_the_even_code_is_taken(phase):
    found = formats.encode(torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]), E2M1).tolist()
    wanted = [0, 2, 2, 4, 4, 6, 6]
    assert found == wanted, f"0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5: ties, with codes {wanted}; yours are {found}"


@of("p07")
def test_a_negative_number_has_the_sign_bit_in_front(phase):
    found = formats.encode(torch.tensor([-0.5, -6.0, 6.0]), E2M1).tolist()
    assert found == [9, 15, 7], f"-0.5, -6, 6 are codes 8 + 1, 8 + 7 and 7; yours are {found}"


@of("p07")
def test_beyond_the_largest_point_a_number_is_cut_off_to_it(phase):
    found = formats.decode(formats.encode(torch.tensor([7.9, -100.0]), E2M1), E2M1).tolist()
    assert found == [6.0, -6.0], f"7.9 and -100 become 6 and -6; yours {found}"


@of("p07")
@pytest.mark.parametrize("form", [E4M3, E5M2], ids=NAMES.get)
def test_rounding_is_torchs(phase, form):
    x = torch.cat((normal(4000), normal(4000, seed=1) * 2**-8, torch.linspace(-1, 1, 4001) * form.largest))
    found, wanted = formats.decode(formats.encode(x, form), form), x.to(TORCH[form]).float()
    parted = (found != wanted).nonzero().flatten()
    first = int(parted[0]) if len(parted) else 0
    assert not len(parted), (
        f"{NAMES[form]}: {float(x[first]):g} is {float(wanted[first]):g}; yours {float(found[first]):g}"
    )


# -- scales ------------------------------------------------------------------------------------------------------------


@of("p07")
def test_a_scale_of_mx_is_a_power_of_two_that_brings_the_largest_exponent_to_that_of_the_largest_point(phase):
    found = formats.power_of_two(torch.tensor([4.0, 6.0, 7.9, 8.0, 0.3])).tolist()
    wanted = [1.0, 1.0, 1.0, 2.0, 0.0625]
    assert found == wanted, f"largest weights 4, 6, 7.9, 8, 0.3: scales {wanted}; yours {found}"
    eight = float(formats.power_of_two(torch.tensor(448.0), formats.E4M3))
    assert eight == 1, f"448 is E4M3's own largest point, so its scale is 1; yours {eight:g} (is it E2M1's?)"


@of("p07")
def test_a_block_of_zeros_has_a_scale_that_can_be_divided_by(phase):
    zeros, mixed = torch.zeros(1, 64), torch.cat((torch.zeros(1, 32), torch.ones(1, 32)), dim=1)
    for name in ("mxfp4", "nvfp4"):
        for w in (zeros, mixed):
            found = getattr(formats, name)(w)
            assert torch.equal(found, w), (
                f"{name}: 64 weights that begin with {w[0, 0]:g} and end with {w[0, -1]:g} are what they were; yours "
                f"begin with {found[0, 0]:g} and end with {found[0, -1]:g}"
            )


@of("p07")
def test_a_scale_of_nv_is_an_e4m3_times_one_number_for_all_blocks(phase):
    largest = torch.tensor([[6.0, 3.0, 0.7]])
    found = [round(value, 4) for value in (formats.two_scales(largest) * 448).flatten().tolist()]
    assert found == [448.0, 224.0, 52.0], (
        f"the largest block's E4M3 is 448, half of it 224, and 0.7 / 6 of it 52.27, whose nearest is 52; yours: {found}"
    )


@of("p07")
def test_a_block_far_below_the_others_has_the_smallest_scale_and_not_zero(phase):
    largest = torch.tensor([[6.0 * 448, 6 * 2.0**-11, 0.0]])
    found = formats.two_scales(largest)[0].tolist()
    assert found == [448.0, 2.0**-9, 2.0**-9], (
        f"blocks whose largest weights are 2688, 0.0029 and 0: the last two need less than E4M3's smallest point, and "
        f"have that point, 2^-9 = 0.00195; yours: {found}"
    )


@of("p07")
def test_mxfp4_is_the_engines(phase):
    w = normal(6, 96, seed=3) * torch.tensor([1.0, 30.0, 0.01]).repeat_interleave(32)
    wanted, found = engines.wide_blocks(engines.to_blocks(w.view(-1, 32))).view(w.shape), formats.mxfp4(w)
    row, column = divmod(int((found - wanted).abs().argmax()), 96)
    assert torch.equal(found, wanted), (
        f"in blocks of 32 with a power of two each, {w[row, column]:g} becomes {wanted[row, column]:g}; yours "
        f"{found[row, column]:g}"
    )


@of("p07")
def test_an_outlier_harms_its_own_block_of_a_float_less_than_a_grid(phase):
    """The floats' reason: small weights next to a large one keep their own exponents."""
    w = normal(1, 64, seed=4) * 0.1
    w[0, 5] = 40.0
    spared = (formats.fp8(w, 64) - w).abs()[0, 6:].mean() / w.abs()[0, 6:].mean()
    assert spared < 0.04, f"E4M3's other weights are off by some 2 % of their size; yours by {float(spared):.1%}"


# -- keys and values ---------------------------------------------------------------------------------------------------


@of("p07")
def test_a_vector_of_keys_or_values_has_a_scale_of_its_own(phase):
    x = torch.tensor([[[1.0, -127.0], [0.5, 0.25]], [[254.0, 2.0], [0.0, 0.0]]])
    codes, scale = kv.store(x)
    found = [[round(each, 5) for each in row] for row in scale.tolist()]
    assert found[0] == [1.0, 0.00394] and found[1][0] == 2.0, (
        f"the largest of (1, -127) and of (0.5, 0.25), divided by 127: 1 and 0.00394; of (254, 2): 2; yours: {found}"
    )
    assert codes.dtype == torch.int8, f"codes are int8; yours are {codes.dtype}"
    assert codes[0].tolist() == [[1, -127], [127, 64]], (
        f"(1, -127) in steps of 1 and (0.5, 0.25) of 0.00394: [[1, -127], [127, 64]]; yours: {codes[0].tolist()}"
    )
    assert codes[1].tolist() == [[127, 1], [0, 0]], f"a vector of zeros has codes of zero; yours: {codes[1].tolist()}"


@of("p07")
def test_scales_are_float32_whatever_the_type_of_keys_and_values(phase):
    x = torch.tensor([[[1.0, 0.3]]], dtype=torch.bfloat16)
    _, scale = kv.store(x)
    found = scale.dtype, scale.item()
    assert found == (torch.float32, torch.tensor(1 / 127).item()), (
        f"vectors in bfloat16, the largest number 1: the scale is 1 / 127 = 0.007874 in float32; yours: {found}"
    )


@of("p07")
def test_what_is_stored_for_a_token_depends_on_no_other(phase):
    x = normal(9, 2, 16)
    whole, piece = kv.store(x), kv.store(x[:4])
    same = all(torch.equal(one[:4], other) for one, other in zip(whole, piece, strict=True))
    scales = [[round(each, 4) for each in stored[1][:2, 0].tolist()] for stored in (piece, whole)]
    assert same, (
        f"four tokens alone and the first four of nine have the same codes and scales; yours have scales "
        f"{scales[0]} … and {scales[1]} …"
    )


@of("p07")
def test_scores_are_those_of_the_widened_keys(phase):
    codes, scale = torch.tensor([[1, 2], [3, -4]], dtype=torch.int8), torch.tensor([0.5, 2.0])
    found = kv.scores(torch.tensor([10.0, 1.0]), codes, scale).tolist()
    assert found == [6.0, 52.0], f"codes · q = 12 and 26, times 0.5 and 2: [6, 52]; yours {found}"


@of("p07")
def test_an_output_takes_each_tokens_scale_into_its_weight(phase):
    codes, scale = torch.tensor([[1, 2], [3, -4]], dtype=torch.int8), torch.tensor([0.5, 2.0])
    found = kv.mixed(torch.tensor([0.2, 0.8]), codes, scale).tolist()
    wanted = [4.9, -6.2]
    assert [round(each, 4) for each in found] == wanted, f"0.1 (1, 2) + 1.6 (3, -4) = {wanted}; yours {found}"


@of("p07")
def test_attention_over_codes_is_attention_over_the_vectors_that_they_stand_for(phase):
    q, keys, values = normal(16), normal(20, 1, 16, seed=1), normal(20, 1, 16, seed=2)
    (k, k_scale), (v, v_scale) = kv.store(keys), kv.store(values)
    found = kv.mixed(kv.scores(q, k[:, 0], k_scale[:, 0]).softmax(0), v[:, 0], v_scale[:, 0])
    wanted = (kv.int8(keys)[:, 0] @ q).softmax(0) @ kv.int8(values)[:, 0]
    shown = [[round(each, 3) for each in output[:3].tolist()] for output in (wanted, found)]
    assert torch.allclose(found, wanted, atol=1e-5), (
        f"one query over 20 keys, widened first: {shown[0]} …; the same over their codes; yours: {shown[1]} …"
    )


@pytest.mark.parametrize(("way", "most"), [(kv.int8, 0.02), (kv.fp8, 0.06), (kv.int4, 0.2), (kv.int4_by_channel, 0.2)])
def test_a_cache_in_fewer_bits_changes_what_the_model_says_a_little(way, most):
    model, tokens = tiny_model("tiny-llama"), [7 * i % 320 for i in range(70)]
    wanted = quality.log_probabilities(model, tokens, Recompute(model.config))
    found = quality.log_probabilities(model, tokens, kv.RoundedCache(model.config, way, way))
    off = float((found - wanted).norm() / wanted.norm())
    assert 0 < off < most


def test_a_loud_channel_spoils_a_grid_of_its_token_and_not_of_its_channel():
    x = normal(64, 1, 32)
    x[:, :, 3] *= 30
    quiet = [channel for channel in range(32) if channel != 3]
    off = {way: float((way(x) - x)[:, :, quiet].abs().mean()) for way in (kv.int4, kv.int4_by_channel)}
    assert off[kv.int4] > 5 * off[kv.int4_by_channel] and kv.loudness(x) > 20


def test_tokens_that_fill_no_group_stay_wide():
    x = normal(40, 2, 8)
    found = kv.int4_by_channel(x)
    assert torch.equal(found[32:], x[32:]) and not torch.equal(found[:32], x[:32])
    assert torch.equal(kv.int4_by_channel(x[:5]), x[:5])
