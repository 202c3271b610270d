"""GGUF matrices that stay packed: their values are bit for bit those of the file, and engines run them."""

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import as_asked, open_checkpoint
from gradus.loading.gguf.packed import KEPT
from gradus.loading.quantized import formats
from gradus.models.layers import Linear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8_groups import Int8GroupLinear
from gradus.quantization.parts import SideBySide
from tests.loading.builders import CONFIGS, as_llama_cpp, tensors_of, write_folder, write_gguf
from tests.loading.quantized_builders import matrices

SETTINGS = {"device": "cpu", "dtype": "float32"}
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
LAYER = "model.layers.0.self_attn"


def stored_as(kinds, family="llama"):
    """Hugging Face name → type, in turns, for every matrix of the layers."""
    names = [name for name in tensors_of(CONFIGS[family]) if name.endswith("_proj.weight")]
    return {name: kinds[number % len(kinds)] for number, name in enumerate(names)}


def expected_of(family, kinds):
    """Return each matrix as the `gguf` package computes it, with rows in Hugging Face's order."""
    found = {}
    for name, value in tensors_of(CONFIGS[family]).items():
        if name in kinds:
            _, values = as_llama_cpp(family, CONFIGS[family], name, value)
            wide = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, kinds[name]), kinds[name]))
            if family == "llama" and (".q_proj." in name or ".k_proj." in name):
                heads = CONFIGS[family]["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
                wide = torch.cat([torch.cat([head[0::2], head[1::2]]) for head in wide.chunk(heads)])
            found[name.removesuffix(".weight")] = wide
    return found


@pytest.mark.parametrize("kinds", [[kind] for kind in KEPT] + [list(KEPT)], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_matrix_stands_for_what_the_file_says_bit_for_bit(tmp_path, family, kinds):
    asked = stored_as(kinds, family)
    path = write_gguf(tmp_path / "m.gguf", family, quantize=asked)
    found = dict(matrices(LLM(str(path), quantize="stored", **SETTINGS)))
    expected = expected_of(family, asked)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_rows_of_queries_and_keys_are_permuted_as_they_are_packed(tmp_path):
    """Row r of a head is r // 2 in the first or the second half: a wrong order would still be fluent nonsense."""
    name = f"{LAYER}.k_proj.weight"
    path = write_gguf(tmp_path / "m.gguf", quantize=stored_as([Type.Q4_1]))
    packed = as_asked(open_checkpoint(str(path)), "stored").tensors.read(name)
    values, scales, offsets = packed.parts
    blocks = gguf.quants.quantize(as_llama_cpp("llama", CONFIGS["llama"], name, tensors_of(CONFIGS["llama"])[name])[1],
                                  Type.Q4_1)  # fmt: skip
    row = torch.from_numpy(blocks)[2]  # of the file: the third of the first head, whose partner is the fourth
    assert torch.equal(values[1, :32], torch.cat([row[4:20] & 15, row[4:20] >> 4]))
    assert scales[1, 0] == row[:2].view(torch.float16) and offsets[1, 0] == row[2:4].view(torch.float16)


def test_matrices_side_by_side_may_be_stored_in_different_ways(tmp_path):
    kinds = stored_as([Type.Q4_0]) | {f"{LAYER}.v_proj.weight": Type.Q5_0, f"{LAYER}.q_proj.weight": Type.Q8_0}
    llm = LLM(str(write_gguf(tmp_path / "m.gguf", quantize=kinds)), quantize="stored", **SETTINGS)
    first, second = llm.engine.runner.model.layers
    assert isinstance(first.qkv, SideBySide) and isinstance(second.qkv, Int4Linear)
    assert [type(part) for part in first.qkv.parts] == [Int8GroupLinear, Int4Linear, Linear]
    assert llm.precision.name == "gguf Q4_0 Q8_0 weights, float32"


@pytest.mark.parametrize("kind", KEPT)
def test_a_tied_head_is_packed_and_its_table_is_looked_up_as_floats(tmp_path, kind):
    name = "model.embed_tokens.weight"
    path = write_gguf(tmp_path / "m.gguf", "qwen3", quantize={name: kind})
    model = LLM(str(path), quantize="stored", **SETTINGS).engine.runner.model
    values = tensors_of(CONFIGS["qwen3"])[name].numpy()
    expected = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind))
    assert torch.equal(model.head.dequantized(), expected)
    assert torch.equal(model.embedding.weight, expected) and model.embedding.weight.dtype == torch.float32


def test_an_embedding_that_is_no_head_becomes_floats(tmp_path):
    names = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), Type.Q8_0)
    llm = LLM(str(write_gguf(tmp_path / "m.gguf", quantize=names)), quantize="stored", **SETTINGS)
    assert isinstance(llm.engine.runner.model.head, Int8GroupLinear)
    assert [name for name, _ in llm.checkpoint.quantized.rules] == ["lm_head"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KEPT)
def test_the_weights_are_those_that_loading_as_floats_gives(tmp_path, kind, dtype):
    """Rounded once to the activations' type. Of int4 beside bfloat16, scale and offset are rounded to it before."""
    path = write_gguf(tmp_path / "m.gguf", quantize=stored_as([kind]))
    wide, packed = (
        LLM(str(path), device="cpu", dtype=dtype, quantize=quantize).engine.runner.model.layers[0].down
        for quantize in (None, "stored")
    )
    found, expected = packed.dequantized().to(wide.weight.dtype), wide.weight
    if dtype == "bfloat16" and kind != Type.Q8_0:
        torch.testing.assert_close(found, expected, rtol=0, atol=2**-6 * expected.abs().max().item())
        assert not torch.equal(found, expected)
    else:
        assert torch.equal(found, expected)


def test_engines_agree_on_its_tokens_and_they_are_those_of_floats(tmp_path):
    path = str(write_gguf(tmp_path / "m.gguf", quantize=stored_as(list(KEPT))))
    prompts = [[5, 6, 7], [9] * 30]
    tokens = [
        [done.token_ids for done in LLM(path, phase=phase, quantize=quantize, **SETTINGS).generate(prompts, GREEDY)]
        for phase, quantize in (("p00", None), ("p00", "stored"), ("p06", "stored"), (None, "stored"))
    ]
    assert all(found == tokens[0] for found in tokens)


def test_gpt2s_matrices_lie_transposed_and_stay_floats(tmp_path):
    names = {name: Type.Q8_0 for name in tensors_of(CONFIGS["gpt2"]) if ".c_" in name and name.endswith("weight")}
    path = write_gguf(tmp_path / "m.gguf", "gpt2", quantize=names)
    with pytest.raises(ConfigError, match="has no matrix that is stored as Q8_0, Q4_0, Q4_1"):
        LLM(str(path), quantize="stored", **SETTINGS)


def test_what_has_nothing_packed_is_refused_in_one_line(tmp_path):
    folder = write_folder(tmp_path / "floats")
    fives = write_gguf(tmp_path / "m.gguf", quantize=stored_as([Type.Q5_0]))
    for model in ("random:tiny-llama", str(folder), str(fives)):
        with pytest.raises(ConfigError, match=r"quantize stored: .* has no matrix that is stored as") as error:
            LLM(model, quantize="stored", **SETTINGS)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KEPT)
def test_scales_that_are_not_finite_are_refused(kind):
    blocks = torch.zeros(2, 3, gguf.GGML_QUANT_SIZES[kind][1], dtype=torch.uint8)
    blocks[1, 2, :2] = torch.tensor([0, 0x7C], dtype=torch.uint8)  # infinity
    with pytest.raises(formats.NotReadable, match=r"finite|beyond float16"):
        KEPT[kind][1](blocks)


def test_a_damaged_scale_is_said_with_its_file_and_tensor(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", quantize=stored_as([Type.Q8_0]))
    entry = open_checkpoint(str(path)).tensors._file.tensors["blk.1.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    data[entry.start : entry.start + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"m\.gguf: 'model\.layers\.1\.mlp\.down_proj\.weight' has scales"):
        LLM(str(path), quantize="stored", **SETTINGS)
