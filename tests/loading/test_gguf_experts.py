"""Experts in GGUF files: stacks that stay where they are in the file, whatever the checkpoint calls its tensors."""

from itertools import product

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from gradus import LLM, SamplingParams
from gradus.bench.contenders import gguf_experts
from gradus.bench.contenders.gguf_files import OwnTensors, write
from gradus.cli.memory import render
from gradus.errors import CheckpointError, ConfigError
from gradus.execution.memory.device_memory import readable
from gradus.execution.memory.plan import memory_plan
from gradus.loading import load_model, open_checkpoint
from gradus.models import SHAPES, create_model, load_weights, randomize, read_config, write_config
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.parts import SideBySide
from tests.models.conftest import run
from tests.pairwise import first

CPU = {"device": "cpu"}
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
COUNT = "glm4moe.block_count"
PROMPTS = [[5, 6, 7], [9] * 20]


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}  # llama.cpp rounds the bounds of YaRN
FAMILIES = ("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granite-moe", "gemma4-moe", "gpt-oss", "glm4-moe")


def is_usual(family):
    """Whether a file has three stacks for each layer's experts, and no biases: not one for gates and features."""
    return family not in ("gemma4-moe", "gpt-oss")


def model_of(shape="qwen3-moe"):
    """A tiny model with layers as in llama.cpp: all with experts, or with the first ones dense (GLM)."""
    own = {"mlp_only_layers": []} | (PLAIN if shape == "gpt-oss" else {})
    own |= {"head_dim": 16} if shape in ("qwen2-moe", "olmoe") else {}  # its heads are the stream's width
    own |= {"norm_topk_prob": False} if shape == "qwen2-moe" else {}
    model = create_model(read_config(write_config(SHAPES[f"tiny-{shape}"]) | own))
    randomize(model, 1, std=0.08)
    return model


def written(path, model, kind):
    write(path, model.config, OwnTensors(model), kind)
    return str(path)


def rounded(model, kind):
    """The same model with the values that a file in this format holds."""
    copy = create_model(model.config)
    load_weights(copy, OwnTensors(model))
    with torch.no_grad():
        for name, weight in copy.named_parameters():
            if weight.ndim == 2 and "router" not in name and "shared_gate" not in name:
                kept = kind if name.startswith("layers.") else Type.F16
                values = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kept), kept)
                weight.copy_(torch.from_numpy(values))
    return copy


@pytest.mark.parametrize(
    ("kept", "family"), [*product([True], FAMILIES), *first(product([False], sorted(FAMILIES, key=is_usual)), 2)]
)
def test_experts_are_what_the_file_says(tmp_path, kept, family):
    model, kind = model_of(family), Type.Q8_0
    checkpoint = open_checkpoint(written(tmp_path / "m.gguf", model, kind))
    assert checkpoint.config.experts == model.config.experts
    if kept:
        llm = LLM(checkpoint, phase="p00", quantize="stored", **CPU)
        read = llm.engine.runner.model
        parts = [*read.layers[1].experts.up.parts, read.layers[1].experts.down]
        assert [type(part) for part in parts] == [GGUFLinear] * 3
        kept_there = family != "gemma4-moe"  # whose gates and features are one tensor, and copies here
        assert [part.stays_in_file for part in parts] == [kept_there, kept_there, True]
    else:
        read = load_model(checkpoint, dtype=torch.float32, device="cpu")
    expected = run(rounded(model, kind), PROMPTS[1])
    torch.testing.assert_close(run(read, PROMPTS[1]), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def test_an_engine_that_keeps_the_bits_answers_as_the_reference_does(tmp_path):
    path = written(tmp_path / "m.gguf", model_of(), Type.Q8_0)
    reference, engine = LLM(path, phase="p00", quantize="stored", **CPU), LLM(path, **CPU)
    found = [[each.token_ids for each in llm.generate(PROMPTS, GREEDY)] for llm in (reference, engine)]
    assert found[0] == found[1]


def test_stacks_are_the_mapped_file_itself_and_so_is_each_expert(tmp_path):
    checkpoint = open_checkpoint(written(tmp_path / "m.gguf", model_of(), Type.Q8_0))
    (data,) = set(checkpoint.tensors._file._bytes.values())
    file = np.frombuffer(data, np.uint8)
    experts = LLM(checkpoint, **CPU).engine.runner.model.layers[0].experts
    assert isinstance(experts.up, SideBySide)
    width = experts.experts.width
    matrices = [*experts.up.parts, experts.down, experts.up.part(3 * width, 4 * width), experts.down.part(64, 128)]
    for linear in matrices:
        assert 0 <= linear.blocks.data_ptr() - file.ctypes.data < len(file)
    third = experts.up.part((8 + 3) * width, (8 + 4) * width)
    assert torch.equal(third.dequantized(), experts.up.parts[1].dequantized()[3 * width : 4 * width])


def test_gates_and_features_may_be_stored_in_different_ways(tmp_path, monkeypatch):
    kinds = {"ffn_gate_exps": Type.Q4_0, "ffn_up_exps": Type.Q8_0, "ffn_down_exps": Type.F16}
    monkeypatch.setattr(
        "gradus.bench.contenders.gguf_files._kind",
        lambda name, shape, kind: next((each for part, each in kinds.items() if part in name), Type.F32),
    )
    path = written(tmp_path / "m.gguf", model_of(), Type.F32)
    experts = LLM(path, dtype="float32", quantize="stored", **CPU).engine.runner.model.layers[2].experts
    assert [part.format.name for part in experts.up.parts] == ["q4_0", "q8_0"]
    assert experts.down.weight.dtype == torch.float32
    plain = LLM(path, phase="p00", dtype="float32", **CPU).generate(PROMPTS, GREEDY)
    kept = LLM(path, dtype="float32", quantize="stored", **CPU).generate(PROMPTS, GREEDY)
    assert [each.token_ids for each in plain] == [each.token_ids for each in kept]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expert_count": 7}, "blk.0.ffn_gate_inp.weight' has shape (8, 64), the configuration needs (7, 64)"),
        ({"expert_feed_forward_length": 64}, "blk.0.ffn_gate_exps.weight' has shape (8, 96, 64), the configuration"),
        ({"expert_used_count": 9}, "9 of 8 experts cannot be chosen"),
        ({"expert_gating_func": 2}, "qwen3moe.expert_gating_func other than 1 is not supported"),
        ({"expert_weights_scale": 2.5}, "qwen3moe.expert_weights_scale = 2.5 changes what the model computes"),
        ({"expert_shared_count": 1}, "qwen3moe.expert_shared_count = 1 changes what the model computes"),
    ],
)
def test_metadata_that_contradict_the_experts_are_refused_in_one_line(tmp_path, change, words, monkeypatch):
    original = gguf_experts.describe

    def describe(writer, config):
        original(writer, config)
        for key, value in change.items():  # a key that is there already is overwritten
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"qwen3moe.{key}", value)

    monkeypatch.setattr(gguf_experts, "describe", describe)
    with pytest.raises((CheckpointError, ConfigError)) as error:
        checkpoint = open_checkpoint(written(tmp_path / "m.gguf", model_of(), Type.Q8_0))
        load_model(checkpoint, dtype=torch.float32, device="cpu")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_files_with_one_tensor_per_expert_are_read(tmp_path, monkeypatch):
    """Mixtral's, from before llama.cpp stacked them."""
    model = model_of("mixtral")
    added = gguf.GGUFWriter.add_tensor

    def apart(writer, name, values, **more):
        if "_exps." not in name:
            return added(writer, name, values, **more)
        for expert, one in enumerate(values):
            added(writer, name.replace("_exps.", f".{expert}."), one, **more)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", apart)
    path = written(tmp_path / "m.gguf", model, Type.Q8_0)
    read = load_model(open_checkpoint(path), dtype=torch.float32, device="cpu")
    for (name, found), expected in zip(read.named_parameters(), rounded(model, Type.Q8_0).parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=name)


def test_layers_that_draft_tokens_are_left_out(tmp_path, monkeypatch):
    """GLM's file counts them with the others, and each has experts and tensors of its own."""
    model = model_of("glm4-moe")
    layers, described = model.config.num_layers, gguf_experts.describe

    def describe(writer, config):
        described(writer, config)
        writer.add_nextn_predict_layers(1)
        for name in ("ffn_down_exps", "nextn.eh_proj", "attn_norm"):
            writer.add_tensor(f"blk.{layers}.{name}.weight", np.ones((2, 4, 8), np.float32))

    monkeypatch.setattr(gguf_experts, "describe", describe)
    monkeypatch.setattr(gguf.GGUFWriter, "add_block_count", lambda writer, _: writer.add_uint32(COUNT, layers + 1))
    checkpoint = open_checkpoint(written(tmp_path / "m.gguf", model, Type.Q8_0))
    assert checkpoint.config.experts == model.config.experts
    read = load_model(checkpoint, dtype=torch.float32, device="cpu")
    assert torch.equal(read.layers[-1].experts.router.correction, model.layers[-1].experts.router.correction)


@pytest.mark.parametrize("family", ["qwen3-moe", "gemma4-moe"])
def test_the_memory_plan_counts_no_expert_that_stays_in_the_file(tmp_path, family):
    """Of Gemma 4's, gates and features are copies."""
    checkpoint = open_checkpoint(written(tmp_path / "m.gguf", model_of(family), Type.Q8_0))
    llm = LLM(checkpoint, **CPU)
    experts = [layer.experts for layer in llm.engine.runner.model.layers]
    parts = [part for each in experts for part in (*each.up.parts, each.down)]
    copied = [part for each in experts for part in each.up.parts] if family == "gemma4-moe" else []
    stacks = sum(part.blocks.nbytes for part in parts) - sum(part.blocks.nbytes for part in copied)
    plan = memory_plan(llm.config, llm.options, torch.device("cpu"), llm.precision)
    assert plan.mapped_bytes == stacks > 0
    assert plan.weight_bytes == llm.weight_bytes - stacks
    assert f"{readable(stacks)} of experts, read as tokens choose them" in render(plan)
