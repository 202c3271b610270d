"""Checkpoints that others have quantized: read as they are, and refused in one line where they cannot be."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import open_checkpoint
from gradus.loading.json_file import read_object
from gradus.loading.progress import Silent
from gradus.loading.quantized import formats
from gradus.models.layers import MatrixId
from gradus.quantization.fp8 import Fp8BlockLinear
from tests.loading.builders import write_folder, write_json
from tests.loading.quantized_builders import FORMATS, compressed, fp8, matrices, pack_quantized, quantize_folder
from tests.pairwise import first

SETTINGS = {"device": "cpu", "dtype": "float32"}
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
OF_EACH_SCHEME = ("awq", "gptq desc_act", "int-quantized", "float-quantized", "fp8 block")
"""The other formats are read into the same matrices, and engines run the same code."""
OTHERS = [form for form in FORMATS if form not in OF_EACH_SCHEME]


def weights_alone(kind):
    """In 8 bits, with activations as they are."""
    said = compressed("channel", kind)
    said["config_groups"]["group_0"]["input_activations"] = None
    return said


@pytest.mark.parametrize("form", FORMATS)
def test_every_matrix_is_what_its_format_says(tmp_path, form):
    expected = quantize_folder(tmp_path / "model", form)
    llm = LLM(str(tmp_path / "model"), phase="p01", **SETTINGS)
    found = dict(matrices(llm))
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        # scale and offset are float16 here: half a unit in the last place of an offset of 15 scales
        torch.testing.assert_close(
            found[name], matrix, rtol=0, atol=3e-4 if "int4" in str(llm.precision.scheme) else 2e-4
        )


def turned_by_half(qkv):
    """Phi-3's rows as they are here. Half of each head's 16 values turn, and there value i is paired with i + 4: here
    with i + 8, and those that rest follow, in halves too. Four heads of queries, two of keys, then the values."""
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    return torch.cat([qkv[: 6 * 16].view(6, 16, -1)[:, order].flatten(0, 1), qkv[6 * 16 :]])


@pytest.mark.parametrize("form", [form for form in FORMATS if "block" not in form])
def test_fused_matrices_are_read_whole_and_their_rows_put_in_order(tmp_path, form):
    expected = quantize_folder(tmp_path / "model", form, "phi3")
    found = dict(matrices(LLM(str(tmp_path / "model"), phase="p00", **SETTINGS)))
    assert found.keys() == expected.keys() and any(name.endswith("qkv_proj") for name in found)
    for name, matrix in expected.items():
        matrix = turned_by_half(matrix) if name.endswith("qkv_proj") else matrix
        torch.testing.assert_close(found[name], matrix, rtol=0, atol=3e-4)


@pytest.mark.parametrize("form", [form for form in FORMATS if "block" in form])
def test_blocks_of_rows_across_fused_matrices_are_refused(tmp_path, form):
    """The first block of the gate's and the features' 96 + 96 rows ends among the features."""
    quantize_folder(tmp_path / "model", form, "phi3")
    with pytest.raises(CheckpointError, match=r"_proj.weight' is in blocks of 128 rows, .* not supported$") as error:
        LLM(str(tmp_path / "model"), phase="p00", **SETTINGS)
    assert "\n" not in str(error.value) and str(error.value).startswith("model.safetensors: tensor 'model.layers.")


def test_rows_change_places_inside_blocks_alone():
    tensors, expected = fp8(256, 100, 0, scales="block")
    packed = formats.fp8(tensors["weight"], tensors["weight_scale"])
    inside = [*reversed(range(128)), *range(128, 256)]
    linear = Fp8BlockLinear(MatrixId("qkv", 0), 100, (128, 128), False)
    packed.reordered(inside).into(linear, 0)
    torch.testing.assert_close(linear.dequantized(), expected[inside])
    with pytest.raises(ValueError, match="in blocks of 128 rows, and rows of several blocks have to change places"):
        packed.reordered([*reversed(range(256))])


def test_a_matrix_that_is_stored_transposed_is_not_taken_as_it_is(tmp_path):
    """GPT-2's output matrix is square, so that no shape would say it."""
    quantize_folder(tmp_path / "model", "int-quantized", "gpt2", ends=".attn.c_proj.weight")
    with pytest.raises(CheckpointError, match=r"is quantized in another form than the model's .transposed.: not supp"):
        LLM(str(tmp_path / "model"), phase="p00", **SETTINGS)


def test_a_multimodal_checkpoint_in_8_bits_is_its_text_part(tmp_path):
    """As Ministral 3 is published: one scale for each matrix, scales of activations, and a tower in 16 bits."""
    expected = quantize_folder(tmp_path / "model", "fp8 tensor", "ministral3")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {}
    for name, value in load_file(file).items():
        name = name.replace(".weight_scale", ".weight_scale_inv").replace(".input_scale", ".activation_scale")
        name = f"language_model.{name}"
        tensors[name] = value
    tensors |= {
        "vision_tower.transformer.layers.0.attention.q_proj.weight": torch.ones(8, 8, dtype=torch.bfloat16),
        "multi_modal_projector.linear_1.weight_packed": torch.ones(4, 2, dtype=torch.int32),
    }
    save_file(tensors, file, metadata={"format": "pt"})
    text = read_object(tmp_path / "model" / "config.json")
    quantization = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    whole = {"model_type": "mistral3", "text_config": text, "quantization_config": quantization}
    write_json(tmp_path / "model" / "config.json", whole)
    said = Said()
    checkpoint = open_checkpoint(str(tmp_path / "model"), progress=said)
    found = dict(matrices(LLM(checkpoint, phase="p00", **SETTINGS)))
    parts = "multi_modal_projector, vision_tower"
    assert said.notes == [f"{tmp_path / 'model'}: skipped 2 tensors (0.0 MB) of {parts}: only text is computed"]
    assert checkpoint.size_bytes == file.stat().st_size - 8 * 8 * 2 - 4 * 2 * 4
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        torch.testing.assert_close(found[name], matrix)


class Said(Silent):
    """The lines that loading leaves on the screen."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("form", first([*OF_EACH_SCHEME, *OTHERS], len(OF_EACH_SCHEME)))
def test_engines_agree_on_its_tokens(tmp_path, form):
    quantize_folder(tmp_path / "model", form)
    tokens = [
        [
            done.token_ids
            for done in LLM(str(tmp_path / "model"), phase=phase, **SETTINGS).generate([[5, 6, 7], [9] * 30], GREEDY)
        ]
        for phase in ("p00", None)
    ]
    assert tokens[0] == tokens[1]


def test_blocks_of_fp8_stay_blocks():
    """The tiny model's matrices are smaller than one."""
    tensors, expected = fp8(200, 300, 0, scales="block")
    packed = formats.fp8(tensors["weight"], tensors["weight_scale"])
    assert packed.scheme == "fp8-block"
    linear = Fp8BlockLinear(MatrixId("down", 0), 300, (56, 200), False)
    packed.into(linear, 56)
    torch.testing.assert_close(linear.dequantized()[56:], expected)


def test_what_it_is_quantized_in_is_found_before_a_weight_is_read(tmp_path):
    quantize_folder(tmp_path / "model", "gptq desc_act")
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert checkpoint.quantized.label == "gptq int4-g32-ordered"
    assert {scheme for _, scheme in checkpoint.quantized.rules} == {"int4-g32-ordered"}
    assert checkpoint.quantized.scheme("lm_head") == "none"


def test_to_quantize_it_again_is_refused(tmp_path):
    quantize_folder(tmp_path / "model", "awq")
    with pytest.raises(ConfigError, match=r"quantize int8: these weights are quantized already \(awq int4-g32\)"):
        LLM(str(tmp_path / "model"), quantize="int8", **SETTINGS)


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("awq", {"bits": 3}, "has 3 bits: 4 can be read"),
        ("awq", {"version": "gemv"}, "AWQ's version gemv: gemm can be read"),
        ("awq", {"quant_method": "quip"}, "is of the method 'quip': awq and gptq can be read"),
        ("gptq", {"checkpoint_format": "gptq_p"}, "GPTQ's format 'gptq_p'"),
        ("awq", {"group_size": 64}, "has 3 groups per row of 96, but group_size is 64"),
        ("gptq", {"group_size": -1}, "has 3 groups per row of 96, but group_size is -1"),
        ("int-quantized", weights_alone("int"), "has int8 weights for float activations: 8 bits for both can be read"),
        ("float-quantized", weights_alone("float"), "has fp8 weights for float activations: 8 bits for both can"),
        ("fp8 tensor", {"activation_scheme": None}, "has fp8 weights for float activations"),
        ("fp8 block", {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "has fp8 weights for float activations"),
        ("fp8 block", {"weight_block_size": [64, 128]}, r"has blocks of \[64, 128\]: 128 x 128 can be read"),
        ("fp8 tensor", {"weight_block_size": [128, 128]}, r"has scales of shape \(\): \(1, 1\) of blocks of 128 x 128"),
        ("float-quantized", compressed("tensor", "float"), "has num_bits 8, type float, strategy channel, which none"),
        ("int-quantized", compressed("block"), "has num_bits 8, type int, strategy channel, which none of config_g"),
        ("float-quantized", compressed("channel", "int"), "has num_bits 8, type float, which none of config_groups"),
        ("pack-quantized", compressed("channel"), "has num_bits 4, type int, which none of config_groups says"),
        ("pack-quantized", compressed("group", symmetric=False), "lacks weight_zero_point, though symmetric is false"),
    ],
)
def test_a_kind_that_is_not_supported_is_said(tmp_path, form, change, message):
    quantize_folder(tmp_path / "model", form)
    config = read_object(tmp_path / "model" / "config.json")
    write_json(
        tmp_path / "model" / "config.json", config | {"quantization_config": config["quantization_config"] | change}
    )
    with pytest.raises(CheckpointError, match=message) as error:
        open_checkpoint(str(tmp_path / "model"))
    assert "model.layers.0." in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("gptq", {"sym": True}),
        ("gptq v2", {"sym": True}),
        ("awq", {"zero_point": False}),
        ("pack-quantized asymmetric", compressed("group")),
    ],
)
def test_zero_points_that_symmetric_integers_do_not_have_are_refused(tmp_path, form, change):
    quantize_folder(tmp_path / "model", form)
    config = read_object(tmp_path / "model" / "config.json")
    config["quantization_config"] |= change
    write_json(tmp_path / "model" / "config.json", config)
    with pytest.raises(
        CheckpointError, match=r"has zero points from \d+ to \d+, though its integers are said to be"
    ) as e:
        LLM(str(tmp_path / "model"), **SETTINGS)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("nonsense", [[], "all", 7, {"strategy": [], "symmetric": {}, "block_structure": {}}])
@pytest.mark.parametrize("form", ["pack-quantized", "int-quantized", "float-quantized"])
def test_nonsense_in_the_groups_is_no_traceback(tmp_path, form, nonsense):
    quantize_folder(tmp_path / "model", form)
    config = read_object(tmp_path / "model" / "config.json")
    config["quantization_config"]["config_groups"]["group_0"]["weights"] = nonsense
    write_json(tmp_path / "model" / "config.json", config)
    try:
        open_checkpoint(str(tmp_path / "model"))
    except CheckpointError as refused:
        assert "\n" not in str(refused)


def test_zero_points_of_symmetric_integers_may_be_stored_as_zeros():
    tensors, expected = pack_quantized(64, 96, 0)
    zeros = torch.zeros(64, 3, dtype=torch.int8)
    packed = formats.packed_int4(tensors["weight_packed"], tensors["weight_scale"], zeros, None, symmetric=True)
    values, scales, offsets = packed.parts
    found = values * scales.repeat_interleave(32, 1) + offsets.repeat_interleave(32, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("rows", [64, 128, 1000])
@pytest.mark.parametrize("width", [64, 320, 128 * 64, 128 * 128, 128 * 1000])
def test_scales_are_read_by_their_shape_and_not_by_their_number(rows, width):
    """A matrix 16,384 wide with 1,024 rows has as many blocks as rows."""
    tiles = -(-rows // 128), -(-width // 128)
    assert formats.fp8_scheme((rows, width), tiles, blocked=True) == "fp8-block"
    assert formats.fp8_scheme((rows, width), tiles) == ("fp8" if tiles == (1, 1) else "fp8-block")
    for shape in ((), (1,), (1, 1), (rows,), (rows, 1)):
        assert formats.fp8_scheme((rows, width), shape) == "fp8"
    for shape in ((1, rows), (rows // 2, 2)):
        if shape != tiles:
            with pytest.raises(formats.NotReadable, match=r"has scales of shape"):
                formats.fp8_scheme((rows, width), shape)
            with pytest.raises(formats.NotReadable, match=r"has scales of shape"):
                formats.int8(torch.zeros(rows, 4, dtype=torch.int8), torch.ones(shape))


def test_as_many_blocks_as_rows_stand_for_the_right_weights():
    tensors, expected = fp8(4, 512, 0, scales="block")
    packed = formats.fp8(tensors["weight"], tensors["weight_scale"])
    linear = Fp8BlockLinear(MatrixId("down", 0), 512, (4,), False)
    packed.into(linear, 0)
    torch.testing.assert_close(linear.dequantized(), expected)


@pytest.mark.parametrize(
    ("form", "end", "value", "message"),
    [
        ("awq", "scales", None, "lacks 'model.layers.0.mlp.down_proj.scales'"),
        ("awq", "scales", torch.ones(5, 64), "has 5 groups per row of 96, but group_size is 32"),
        ("awq", "scales", torch.full((3, 64), float("nan")), "has scales that are not finite"),
        ("awq", "qzeros", torch.zeros(2, 8, dtype=torch.int32), "and zero points"),
        ("gptq", "g_idx", torch.zeros(96, dtype=torch.int32), "has groups of other sizes than 32"),
        ("pack-quantized", "weight_shape", torch.tensor([64, 200]), "has words"),
        ("float-quantized", "weight_scale", None, "is stored as F8_E4M3 and lacks weight_scale"),
        ("float-quantized", "weight_scale", torch.ones(7, 1), r"has scales of shape \(7, 1\)"),
        ("int-quantized", "weight_scale", torch.ones(1, 64), r"has scales of shape \(1, 64\): one or \(64, 1\)"),
        ("int-quantized", "weight_scale", torch.full((64, 1), float("inf")), "has scales that are not finite"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(tmp_path, form, end, value, message):
    quantize_folder(tmp_path / "model", form)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    name = f"model.layers.0.mlp.down_proj.{end}"
    assert name in tensors
    tensors = {key: each for key, each in tensors.items() if key != name} | ({} if value is None else {name: value})
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message) as error:
        LLM(str(tmp_path / "model"), **SETTINGS)
    assert "\n" not in str(error.value)


def test_a_configuration_that_speaks_of_quantization_where_there_is_none_is_refused(tmp_path):
    write_folder(tmp_path / "model")
    config = read_object(tmp_path / "model" / "config.json")
    write_json(tmp_path / "model" / "config.json", config | {"quantization_config": {"quant_method": "awq"}})
    with pytest.raises(CheckpointError, match="quantization 'awq', but no matrix is quantized"):
        open_checkpoint(str(tmp_path / "model"))


def test_integers_without_scales_are_no_weights(tmp_path):
    write_folder(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' holds torch.int8, expected floating-point"):
        LLM(str(tmp_path / "model"), **SETTINGS)
