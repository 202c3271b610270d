"""Experts that others have quantized: one matrix each, or gpt-oss's stacks in MXFP4."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import open_checkpoint
from gradus.loading.json_file import read_object
from gradus.quantization.parts import SideBySide
from tests.loading.builders import write_json
from tests.loading.quantized_builders import matrices, mxfp4, mxfp4_folder, quantize_folder
from tests.pairwise import first

SETTINGS = {"device": "cpu", "dtype": "float32"}
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9] * 30]
USUAL = (  # the first five are of different schemes, and with an order or without
    "awq",
    "gptq desc_act",
    "int-quantized",
    "float-quantized",
    "fp8 block",
    "gptq",
    "pack-quantized",
    "fp8 tensor",
)


@pytest.mark.parametrize("form", USUAL)
def test_every_expert_is_what_its_format_says(tmp_path, form):
    expected = quantize_folder(tmp_path / "model", form, "qwen3-moe")
    llm = LLM(str(tmp_path / "model"), phase="p01", **SETTINGS)
    found = dict(matrices(llm))
    assert found.keys() == expected.keys() and sum(".experts." in name for name in found) == 3 * 3 * 8
    for name, matrix in expected.items():
        torch.testing.assert_close(found[name], matrix, rtol=0, atol=3e-4)
    layer = llm.engine.runner.model.layers[0]
    assert type(layer.experts.router.product).__name__ == "Linear"
    assert isinstance(layer.experts.up, SideBySide) == (form == "gptq desc_act")


@pytest.mark.parametrize("form", first(USUAL, 5))
def test_engines_agree_on_its_tokens(tmp_path, form):
    quantize_folder(tmp_path / "model", form, "qwen3-moe")
    tokens = [
        [done.token_ids for done in LLM(str(tmp_path / "model"), phase=phase, **SETTINGS).generate(PROMPTS, GREEDY)]
        for phase in ("p00", None)
    ]
    assert tokens[0] == tokens[1]


def test_a_list_of_what_is_not_converted_may_name_routers(tmp_path):
    """As Qwen3-30B-A3B-FP8 has it."""
    quantize_folder(tmp_path / "model", "fp8 block", "qwen3-moe")
    config = read_object(tmp_path / "model" / "config.json")
    config["quantization_config"]["modules_to_not_convert"] = [
        "lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in (0, 2, 3)),
        *(f"model.layers.{layer}.input_layernorm" for layer in range(4)),
    ]  # fmt: skip
    write_json(tmp_path / "model" / "config.json", config)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert checkpoint.quantized.label == "fp8 fp8-block"
    assert checkpoint.quantized.scheme("model.layers.2.mlp.experts.7.down_proj") == "fp8-block"
    assert checkpoint.quantized.scheme("model.layers.2.mlp.gate") == "none"
    LLM(checkpoint, phase="p00", **SETTINGS)


def test_a_router_in_fewer_bits_is_refused(tmp_path):
    quantize_folder(tmp_path / "model", "int-quantized", "qwen3-moe", ends="mlp.gate.weight")
    with pytest.raises(
        ConfigError, match=r"'model.layers.0.mlp.gate' is a router or a gate of experts, which stays in"
    ):
        LLM(str(tmp_path / "model"), **SETTINGS)


def test_experts_of_several_schemes_are_refused_with_their_names(tmp_path):
    quantize_folder(tmp_path / "model", "int-quantized", "qwen3-moe", ends="experts.3.up_proj.weight")
    with pytest.raises(
        ConfigError, match=r"gate_proj: experts of one layer have the schemes int8, none: they need the"
    ):
        LLM(str(tmp_path / "model"), **SETTINGS)


# -- gpt-oss -----------------------------------------------------------------------------------------------------------


def in_stack_order(name, stack):
    """Rows as they are here: all experts' gates above all experts' features, which the file has in turns."""
    if name.endswith("gate_up_proj"):
        stack = torch.cat([stack[:, 0::2], stack[:, 1::2]])
    return stack.flatten(0, 1)


def test_gpt_oss_s_experts_are_what_is_published(tmp_path):
    expected = mxfp4_folder(tmp_path / "model")
    llm = LLM(str(tmp_path / "model"), phase="p01", **SETTINGS)
    assert llm.precision.scheme == "mxfp4 mxfp4"
    found = experts_of(llm)
    assert found.keys() == expected.keys() and len(found) == 8
    for name, stack in expected.items():
        assert torch.equal(found[name], in_stack_order(name, stack)), name


def experts_of(llm):
    found = {}
    for number, layer in enumerate(llm.engine.runner.model.layers):
        for name, matrix in (("gate_up_proj", layer.experts.up), ("down_proj", layer.experts.down)):
            parts = matrix.parts if isinstance(matrix, SideBySide) else [matrix]
            found[f"model.layers.{number}.mlp.experts.{name}"] = torch.cat([part.dequantized() for part in parts])
    return found


def test_transformers_reads_the_same_numbers():
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors as theirs

    tensors, expected = mxfp4(2, 6, 64, 0)
    wide = theirs(tensors["blocks"], tensors["scales"], dtype=torch.float32)  # [E, K, N]
    assert torch.equal(wide.transpose(1, 2), expected)


def test_engines_agree_on_gpt_oss_s_tokens_and_floats_give_them_too(tmp_path):
    expected = mxfp4_folder(tmp_path / "model")
    tokens = [generated(tmp_path / "model", phase) for phase in ("p00", None)]
    file = tmp_path / "model" / "model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if not name.endswith(("_blocks", "_scales"))}
    tensors |= {name: stack.transpose(1, 2).contiguous() for name, stack in expected.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    config = read_object(tmp_path / "model" / "config.json")
    del config["quantization_config"]
    write_json(tmp_path / "model" / "config.json", config)
    assert tokens[0] == tokens[1] == generated(tmp_path / "model", "p00")


def generated(folder, phase):
    return [done.token_ids for done in LLM(str(folder), phase=phase, **SETTINGS).generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    ("end", "value", "message"),
    [
        ("scales", None, "lacks 'model.layers.1.mlp.experts.down_proj_scales'"),
        (
            "scales",
            torch.zeros(8, 64, 2, dtype=torch.uint8),
            r"has blocks of shape \(8, 64, 3, 16\) and scales of shape",
        ),
        ("blocks", torch.zeros(8, 64, 48, dtype=torch.uint8), r"has blocks of shape \(8, 64, 48\) and scales of shape"),
        ("scales", torch.full((8, 64, 3), 255, dtype=torch.uint8), "has scales that are not finite"),
        ("both", torch.zeros(8, 32, 3, 16, dtype=torch.uint8), r"has shape \(8, 96, 32\), the configuration needs"),
    ],
)
def test_stacks_that_contradict_themselves_are_refused(tmp_path, end, value, message):
    mxfp4_folder(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors, name = load_file(file), "model.layers.1.mlp.experts.down_proj"
    if end == "both":
        tensors |= {f"{name}_blocks": value, f"{name}_scales": value[..., 0].contiguous()}
    else:
        del tensors[f"{name}_{end}"]
        tensors |= {} if value is None else {f"{name}_{end}": value}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message) as error:
        LLM(str(tmp_path / "model"), **SETTINGS)
    assert "\n" not in str(error.value)


def test_another_method_s_stack_is_refused(tmp_path):
    mxfp4_folder(tmp_path / "model")
    config = read_object(tmp_path / "model" / "config.json")
    write_json(tmp_path / "model" / "config.json", config | {"quantization_config": {"quant_method": "quark"}})
    with pytest.raises(CheckpointError, match="down_proj' is of the method 'quark': mxfp4 can be read"):
        open_checkpoint(str(tmp_path / "model"))
