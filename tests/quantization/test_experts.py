"""Experts in fewer bits: a stack is one matrix by rows, and an expert's rows are a matrix in the same memory."""

from dataclasses import replace

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.errors import ConfigError
from gradus.models import create_model, load_weights, randomize, write_config
from gradus.models.experts import Mixture
from gradus.models.layers import Linear, MatrixId
from gradus.models.precision import NarrowLinear
from gradus.models.shapes import SHAPES
from gradus.quantization.fp8 import Fp8BlockLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mix import Mix, factory, matrix_ids, names_of
from gradus.quantization.mxfp4 import Mxfp4Linear
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import SCHEMES, STORED
from tests.loading.builders import tensors_of
from tests.models.conftest import InMemory

MOE = SHAPES["tiny-qwen3-moe"]  # 8 experts of 96, in layers 0, 2 and 3
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9] * 20, list(range(40, 80))]
UP, DOWN = MatrixId("experts_up", 0), MatrixId("experts_down", 0)
CLASSES = {**STORED, "words": Mxfp4Linear}
ROUNDED = [*SCHEMES, "int4-g32-ordered", "words"]


def noise(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def stack(scheme, bias=True, rows=(96, 96), width=128):
    linear = CLASSES[scheme](UP, width, rows, bias, torch.float32, "cpu")
    linear.assign("weight", 0, noise(sum(rows), width))
    if bias:
        linear.assign("bias", 0, noise(1, sum(rows), 1)[0])
    return linear


# -- a part ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "end"), [(0, 24), (24, 48), (90, 130), (37, 40), (0, 192)])
@pytest.mark.parametrize("scheme", ROUNDED)
def test_some_rows_multiply_as_they_do_in_the_whole_matrix(scheme, first, end):
    linear, x = stack(scheme), noise(5, 128, 2)
    part = linear.part(first, end)
    torch.testing.assert_close(part(x), linear(x)[:, first:end])
    assert torch.equal(part.dequantized(), linear.dequantized()[first:end])
    torch.testing.assert_close(part.part(1, end - first)(x), linear(x)[:, first + 1 : end])
    assert linear.out_features == (96, 96) and linear(x).shape == (5, 192)  # it stays whole


@pytest.mark.parametrize("scheme", ROUNDED)
def test_a_part_s_memory_is_the_whole_s(scheme):
    linear = stack(scheme)
    where = {value.untyped_storage().data_ptr() for value in (*linear.parameters(), *linear.buffers())}
    part = linear.part(24, 48)
    assert {value.untyped_storage().data_ptr() for value in (*part.parameters(), *part.buffers())} == where


@pytest.mark.parametrize("first", [0, 16, 24, 90])
def test_parts_of_a_matrix_in_lanes(first):
    linear, x = stack("int4"), noise(5, 128, 2)
    expected, wide = linear(x), linear.dequantized()
    linear.use_lanes()
    part = linear.part(first, first + 40)
    torch.testing.assert_close(part(x), expected[:, first : first + 40])
    assert torch.equal(part.part(3, 30).dequantized(), wide[first + 3 : first + 30])


def test_a_part_in_ggufs_blocks_is_widened_by_the_kernel_of_the_whole():
    linear, asked = stack("mxfp4", bias=False), []
    linear.widen = lambda first, end: asked.append((first, end)) or linear.wide_rows(first, end)
    x = noise(2, 128, 2)
    torch.testing.assert_close(linear.part(24, 48)(x), linear(x)[:, 24:48])
    assert asked[0] == (24, 48)


def test_a_part_of_narrow_weights():
    linear = NarrowLinear(UP, 64, (16, 16), True, torch.float32, "cpu", widen_from=4)
    linear.assign("weight", 0, noise(32, 64))
    linear.assign("bias", 0, noise(1, 32, 1)[0])
    for rows in (1, 8):
        x = noise(rows, 64, 2)
        torch.testing.assert_close(linear.part(8, 24)(x), linear(x)[:, 8:24])


def test_a_part_of_matrices_side_by_side_is_of_one_or_of_several():
    makers = [STORED["int8"], STORED["int4"]]
    linear = SideBySide(UP, 128, (96, 96), True, torch.float32, "cpu", makers=makers)
    linear.assign("weight", 0, noise(192, 128))
    linear.assign("bias", 0, noise(1, 192, 1)[0])
    x = noise(5, 128, 2)
    assert type(linear.part(0, 96)) is Int8Linear and type(linear.part(100, 110)) is Int4Linear
    for first, end in ((24, 48), (90, 110), (100, 192)):
        torch.testing.assert_close(linear.part(first, end)(x), linear(x)[:, first:end])


def test_every_expert_has_blocks_of_its_own():
    """96 rows are no multiple of 128, so blocks begin anew with every expert."""
    make = factory(Mix.of("fp8-block"), MOE, Linear)
    linear = make(UP, 64, (8 * 96, 8 * 96), False, torch.float32, "cpu")
    assert isinstance(linear, Fp8BlockLinear) and linear.scales.shape == (16, 1)
    weight = noise(2 * 8 * 96, 64)
    for start, rows in ((0, 100), (100, 700), (800, 736)):  # pieces that straddle experts
        linear.assign("weight", start, weight[start : start + rows])
    expected = weight.unflatten(0, (16, 96)).abs().amax((1, 2)) / 448
    torch.testing.assert_close(linear.scales[:, 0], expected)


# -- which matrix gets which scheme ------------------------------------------------------------------------------------


def made(rules, role="experts_up", device="meta", config=MOE):
    count = 8 * 96 if role == "experts_up" else 8 * 64
    widths = (count, count) if role == "experts_up" else (count,)
    make = factory(Mix("test", tuple(rules)), config, Linear)
    return make(MatrixId(role, 0), 64 if role == "experts_up" else 96, widths, False, torch.float32, device)


def test_a_scheme_s_name_is_for_experts_and_never_for_routers():
    model = create_model(MOE, linear=factory(Mix.of("int8"), MOE, Linear), device="meta")
    mixture = model.layers[0].experts
    assert isinstance(mixture, Mixture)
    assert type(mixture.up) is type(mixture.down) is type(model.layers[1].gate_up) is Int8Linear
    assert type(mixture.router.product) is Linear
    assert {each.role for each in matrix_ids(MOE) if each.layer == 0} == {
        "qkv", "attn_out", "experts_up", "experts_down",
    }  # fmt: skip
    assert {each.role for each in matrix_ids(MOE) if each.layer == 1} == {"qkv", "attn_out", "gate_up", "down"}


def test_names_of_experts_are_the_checkpoint_s():
    names = names_of(UP, MOE)
    assert len(names) == 16 and names[0] == "model.layers.0.mlp.experts.0.gate_proj"
    assert names[8] == "model.layers.0.mlp.experts.0.up_proj"
    assert names_of(MatrixId("router", 0), MOE) == ["model.layers.0.mlp.gate"]


def test_patterns_decide_for_all_experts_or_for_gates_and_features():
    assert type(made([("*.experts.*", "int4")])) is Int4Linear
    assert type(made([("*.experts.*", "int4"), ("*.mlp.gate", "int8")], "experts_down")) is Int4Linear
    halves = made([("*.gate_proj", "int8"), ("*.up_proj", "int4")])
    assert type(halves) is SideBySide and [type(part) for part in halves.parts] == [Int8Linear, Int4Linear]
    assert halves.out_features == (768, 768)
    assert type(made([("*.down_proj", "none"), ("*", "int8")], "experts_down")) is Linear


def test_experts_with_orders_of_their_own_are_apart():
    linear = made([("*", "int4-g32-ordered")])
    assert type(linear) is SideBySide and [part.out_features for part in linear.parts] == [(96,)] * 16


@pytest.mark.parametrize("rules", [[("*.experts.3.*", "int8"), ("*.experts.*", "int4")], [("*.experts.5.*", "int4")]])
def test_experts_of_several_schemes_are_refused(rules):
    with pytest.raises(
        ConfigError, match=r"^model.layers.0.mlp.experts.0.gate_proj: experts of one layer have the sch"
    ):
        made(rules)


@pytest.mark.parametrize("pattern", ["*.mlp.gate", "model.layers.2.mlp.gate"])
def test_a_pattern_of_routers_alone_is_refused(pattern):
    with pytest.raises(ConfigError, match=r"is a router or a gate of experts, which stays in floats: leave it out"):
        Mix("test", (("*.experts.*", "int4"), (pattern, "int8"))).check(MOE)


def test_the_first_rule_decides_whether_it_is_a_name_or_a_pattern():
    mix = Mix("test", (("a.b", "int8"), ("a.*", "int4"), ("a.c", "fp8"), ("a.b", "fp8"), ("d", "fp8")))
    assert [mix.scheme(name) for name in ("a.b", "a.c", "d", "e")] == ["int8", "int4", "fp8", "none"]


def test_ten_thousand_names_take_no_time():
    """A checkpoint of 48 layers with 128 experts each has a rule per matrix."""
    import time

    names = [f"model.layers.{layer}.experts.{each}" for layer in range(48) for each in range(384)]
    mix = Mix("test", tuple((name, "int4") for name in names))
    start = time.process_time()
    assert {mix.scheme(name) for name in names} == {"int4"}
    assert time.process_time() - start < 5  # each against each: 340 million comparisons, minutes


# -- whole models ------------------------------------------------------------------------------------------------------


FITTING = [scheme for scheme in SCHEMES if scheme not in ("int4-g128", "int4-g64")]  # for rows of 64 and of 96


@pytest.mark.parametrize("scheme", FITTING)
def test_a_checkpoint_s_experts_are_rounded_as_ours_are(scheme):
    tensors = InMemory(tensors_of(write_config(MOE)))
    wide, narrow = (create_model(MOE, linear=make) for make in (Linear, factory(Mix.of(scheme), MOE, Linear)))
    for model in (wide, narrow):
        load_weights(model, tensors)
    for layer in (0, 2, 3):
        for name in ("up", "down"):
            stacked, mine = (getattr(model.layers[layer].experts, name) for model in (wide, narrow))
            rows = len(stacked.weight) // 8
            parts = [mine.part(first, first + rows).dequantized() for first in range(0, 8 * rows, rows)]
            one = STORED[scheme](UP, stacked.in_features, (rows // len(stacked.out_features),), False)
            one.assign("weight", 0, stacked.weight[: rows // len(stacked.out_features)])
            found = torch.cat(parts)
            assert torch.equal(found[: len(one.dequantized())], one.dequantized())
            error = (found - stacked.weight).abs().max() / stacked.weight.abs().max()
            assert error < (0.26 if scheme == "mxfp4" else 0.1)


@pytest.fixture(scope="module")
def unquantized():
    """The tokens of the model in floats."""
    llm = LLM("random:tiny-qwen3-moe", phase="p00", device="cpu", dtype="float32")
    return [done.token_ids for done in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("quantize", ["int8", "fp8", "fp8-block", "int4", "mxfp4"])
def test_every_engine_gives_a_quantized_model_s_tokens(quantize, unquantized):
    settings = {"device": "cpu", "dtype": "float32", "quantize": quantize}
    plain = LLM("random:tiny-qwen3-moe", phase="p00", **settings)
    expected = [done.token_ids for done in plain.generate(PROMPTS, GREEDY)]
    assert expected != unquantized
    for phase in ("p06", None):
        engine = LLM("random:tiny-qwen3-moe", phase=phase, max_sequences=2, **settings)
        assert [done.token_ids for done in engine.generate(PROMPTS, GREEDY)] == expected, phase


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8-block", "int4", "mxfp4"])
def test_a_mixture_multiplies_by_what_is_stored(scheme):
    """Against the same mixture with the widened weights, and activations rounded as the scheme does."""
    model = create_model(MOE, linear=factory(Mix.of(scheme), MOE, Linear))
    randomize(model, std=0.1)
    mixture = model.layers[0].experts
    plain = create_model(MOE).layers[0].experts
    plain.router.load_state_dict(mixture.router.state_dict())
    for mine, theirs in ((mixture.up, plain.up), (mixture.down, plain.down)):
        parts = mine.parts if isinstance(mine, SideBySide) else [mine]
        theirs.weight.data = torch.cat([part.dequantized() for part in parts])
    x = noise(17, 64, 3)
    expected, found = plain(x, None), mixture(x, None)
    rounds = scheme in ("int8", "fp8", "fp8-block")
    torch.testing.assert_close(found, expected, rtol=0, atol=(0.05 if rounds else 1e-5) * expected.abs().max().item())
    assert (found - expected).abs().max() > 0 or not rounds


def test_weights_of_gpt_oss_s_experts_take_four_and_a_quarter_bits():
    config = replace(
        MOE, hidden_size=2880, experts=tuple(each and replace(each, count=32, width=2880) for each in MOE.experts)
    )
    model = create_model(
        config, linear=factory(Mix("test", (("*.experts.*", "mxfp4"),)), config, Linear), device="meta"
    )
    mixture = model.layers[0].experts
    size = sum(value.nbytes for matrix in (mixture.up, mixture.down) for value in matrix.parameters())
    assert size * 8 == 32 * 3 * 2880 * 2880 * 4.25
