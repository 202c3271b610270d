"""Checkpoints that others have quantized: read as they are, and refused in one line where they cannot be."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import open_checkpoint
from gradus.loading import packed_formats as formats
from gradus.loading.json_file import read_object
from gradus.models.layers import Place
from gradus.quantization.fp8 import Fp8BlockLinear
from tests.loading.builders import write_folder, write_json
from tests.loading.quantized_builders import FORMATS, fp8, matrices, quantize_folder

SETTINGS = {"device": "cpu", "dtype": "float32"}
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)


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


@pytest.mark.parametrize("form", FORMATS)
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
    linear = Fp8BlockLinear(Place("down", 0), 300, (56, 200), False)
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
        (
            "int-quantized",
            {"config_groups": {"g": {"weights": {}, "input_activations": None}}},
            "for float activations",
        ),
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
    ("form", "end", "value", "message"),
    [
        ("awq", "scales", None, "lacks 'model.layers.0.mlp.down_proj.scales'"),
        ("awq", "scales", torch.ones(5, 64), "has 5 groups per row of 96"),
        ("awq", "scales", torch.full((3, 64), float("nan")), "has scales that are not finite"),
        ("awq", "qzeros", torch.zeros(2, 8, dtype=torch.int32), "and zero points"),
        ("gptq", "g_idx", torch.zeros(96, dtype=torch.int32), "has groups of other sizes than 32"),
        ("pack-quantized", "weight_shape", torch.tensor([64, 200]), "has words"),
        ("float-quantized", "weight_scale", None, "is stored as F8_E4M3 and lacks weight_scale"),
        ("float-quantized", "weight_scale", torch.ones(7, 1), r"has scales of shape \(7, 1\)"),
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
