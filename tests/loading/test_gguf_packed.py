"""GGUF matrices that stay in their bits: they are the file's own bytes, and engines run them."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import as_asked, open_checkpoint
from gradus.loading.gguf.packed import KEPT
from gradus.models.layers import Linear
from gradus.models.precision import NarrowLinear, Precision
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.parts import SideBySide
from tests.loading.builders import CONFIGS, INTERLEAVED, as_llama_cpp, tensors_of, write_folder, write_gguf
from tests.loading.gguf_blocks import encode
from tests.loading.quantized_builders import matrices
from tests.pairwise import first

CPU = {"device": "cpu"}
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
LAYER = "model.layers.0.self_attn"
MATRICES = ("_proj.weight", "_input_gate.weight", "_projection.weight")
WIDE = {  # K-formats have blocks of 256
    family: CONFIGS[family]
    | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "query_pre_attn_scalar": 64}
    for family in ("llama", "qwen2", "qwen3", "gemma3", "smollm3", "olmo3", "granite", "phi3")
}
WIDE |= {
    family: CONFIGS[family]
    | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "global_head_dim": 128}
    | ({"hidden_size_per_layer_input": 256} if family == "gemma4-e" else {})
    for family in ("gemma4", "gemma4-e")
}
WIDE["phi3"] = {key: value for key, value in WIDE["phi3"].items() if key != "rope_scaling"}


def stored_as(kinds, family="llama"):
    """Hugging Face name → type, in turns, for every matrix of the layers."""
    names = [name for name in tensors_of(CONFIGS[family]) if name.endswith(MATRICES)]
    return {name: kinds[number % len(kinds)] for number, name in enumerate(names)}


def write(path, kinds, family="llama", **more):
    return write_gguf(path, family, quantize=stored_as(kinds, family) | more, config=WIDE[family])


def expected_of(family, kinds):
    """Return each matrix as the `gguf` package computes it, with rows in Hugging Face's order."""
    config, found = WIDE[family], {}
    for name, value in tensors_of(config).items():
        if name in kinds:
            _, values = as_llama_cpp(family, config, name, value)
            wide = torch.from_numpy(gguf.quants.dequantize(encode(values, kinds[name]), kinds[name]))
            if family in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
                heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
                wide = torch.cat([torch.cat([head[0::2], head[1::2]]) for head in wide.chunk(heads)])
            if name.endswith("qkv_proj.weight"):
                wide = in_halves(wide)
            found[name.removesuffix(".weight")] = wide
    return found


def in_halves(qkv):
    """Phi-3's rows as they are here. Half of each head's 64 values turn, and there value i is paired with i + 16: here
    with i + 32, and those that rest follow, in halves too. Four heads of queries, two of keys, then the values."""
    heads = qkv[: 6 * 64].view(6, 64, -1)
    turned, rest = (heads[:, :16], heads[:, 16:32]), (heads[:, 32:48], heads[:, 48:])
    return torch.cat([torch.cat([turned[0], rest[0], turned[1], rest[1]], 1).flatten(0, 1), qkv[6 * 64 :]])


@pytest.mark.parametrize("family", WIDE)
def test_every_matrix_is_what_the_file_says_bit_for_bit(tmp_path, family):
    kinds = stored_as(list(KEPT), family)
    found = dict(
        matrices(LLM(str(write(tmp_path / "m.gguf", list(KEPT), family)), phase="p00", quantize="stored", **CPU))
    )
    expected = expected_of(family, kinds)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_rows_of_queries_and_keys_are_permuted_in_their_bytes(tmp_path):
    """Row r of a head is r // 2 in the first or the second half: a wrong order would still be fluent nonsense."""
    name = f"{LAYER}.k_proj.weight"
    packed = as_asked(open_checkpoint(str(write(tmp_path / "m.gguf", [Type.Q4_K]))), "stored").tensors.read(name)
    _, values = as_llama_cpp("llama", WIDE["llama"], name, tensors_of(WIDE["llama"])[name])
    blocks = torch.from_numpy(encode(values, Type.Q4_K))
    assert torch.equal(packed.parts[0][1], blocks[2]), "the third of the first head, whose partner is the fourth"
    assert torch.equal(packed.parts[0][32], blocks[1])


def test_a_matrix_is_the_mapped_file_itself(tmp_path):
    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf", [Type.Q6_K, Type.Q8_0])))
    file = np.frombuffer(next(iter(checkpoint.tensors._file._bytes.values())), np.uint8)
    layer = LLM(checkpoint, **CPU).engine.runner.model.layers[0]

    def mapped(linear):
        return 0 <= linear.blocks.data_ptr() - file.ctypes.data < len(file)

    assert mapped(layer.down) and mapped(layer.output) and all(map(mapped, layer.gate_up.parts))
    assert [mapped(part) for part in layer.qkv.parts] == [False, False, True], "q and k are copies in another order"


def test_matrices_side_by_side_may_be_stored_in_different_ways(tmp_path):
    others = {f"{LAYER}.v_proj.weight": Type.Q6_K, f"{LAYER}.q_proj.weight": Type.Q4_1}
    path = write(tmp_path / "m.gguf", [Type.Q4_K], **others)
    llm = LLM(str(path), **CPU)
    first = llm.engine.runner.model.layers[0]
    assert isinstance(first.qkv, SideBySide)
    assert [part.format.name for part in first.qkv.parts] == ["q4_1", "q4_k", "q6_k"]
    assert llm.precision.name == "gguf Q4_1 Q4_K Q6_K weights, float32"


def test_where_16_bits_are_faster_nothing_of_a_file_is_rounded_to_them(tmp_path, monkeypatch):
    narrow = Precision(torch.bfloat16, torch.float32, NarrowLinear, "as if measured")
    monkeypatch.setattr("gradus.models.precision.measure_cpu", lambda config: narrow)
    path = str(write(tmp_path / "m.gguf", [Type.F32, Type.Q4_K]))
    assert LLM(path, **CPU).precision.weights == torch.float32


def test_what_is_not_kept_becomes_floats_beside_what_is(tmp_path):
    path = write(tmp_path / "m.gguf", [Type.Q8_0], **{f"{LAYER}.v_proj.weight": Type.F16})
    llm = LLM(str(path), dtype="float32", quantize="stored", **CPU)
    first, second = llm.engine.runner.model.layers
    assert [type(part) for part in first.qkv.parts] == [GGUFLinear, GGUFLinear, Linear]
    assert all(type(part) is GGUFLinear for part in second.qkv.parts)


@pytest.mark.parametrize("kind", KEPT)
def test_a_tied_head_is_kept_once_and_looked_up_in_its_bits(tmp_path, kind):
    name = "model.embed_tokens.weight"
    llm = LLM(str(write(tmp_path / "m.gguf", [Type.Q8_0], "qwen3", **{name: kind})), **CPU)
    model = llm.engine.runner.model
    values = tensors_of(WIDE["qwen3"])[name].numpy()
    expected = torch.from_numpy(gguf.quants.dequantize(encode(values, kind), kind))
    assert torch.equal(model.head.dequantized(), expected)
    ids = torch.tensor([3, 0, 319])
    assert torch.equal(model.embed(ids, ids), expected[ids])
    assert not list(model.embedding.parameters()), "no second table"
    assert torch.equal(model.embedding_tables().tokens, expected), "as draft heads take it"


def test_a_table_of_every_layers_embeddings_is_looked_up_in_its_bits(tmp_path):
    name = "model.embed_tokens_per_layer.weight"
    path = str(write(tmp_path / "m.gguf", [Type.Q4_K], "gemma4-e", **{name: Type.Q6_K}))
    embedding = LLM(path, phase="p00", quantize="stored", **CPU).engine.runner.model.inputs.embedding
    assert embedding.table.format.name == "q6_k" and not hasattr(embedding, "weight")
    values = tensors_of(WIDE["gemma4-e"])[name].numpy()
    expected = torch.from_numpy(gguf.quants.dequantize(encode(values, Type.Q6_K), Type.Q6_K))
    assert torch.equal(embedding(torch.arange(320)), expected)


def test_an_embedding_that_is_no_head_is_looked_up_in_its_bits(tmp_path):
    kinds = {"model.embed_tokens.weight": Type.Q4_K, "lm_head.weight": Type.Q6_K}
    llm = LLM(str(write(tmp_path / "m.gguf", [Type.Q4_K], **kinds)), **CPU)
    model = llm.engine.runner.model
    assert (model.embedding.table.format.name, model.head.format.name) == ("q4_k", "q6_k")
    values = tensors_of(WIDE["llama"])["model.embed_tokens.weight"].numpy()
    expected = torch.from_numpy(gguf.quants.dequantize(encode(values, Type.Q4_K), Type.Q4_K))
    assert torch.equal(model.embed(torch.arange(320), torch.zeros(320)), expected)


@pytest.mark.parametrize(
    "family", first(["llama", "phi3", "gemma4-e", "gemma3", "granite", "olmo3", "smollm3", "gemma4"], 3)
)
def test_tokens_are_those_of_the_widened_file_in_every_engine(tmp_path, family):
    """Decodes in kernels, prompts in torch, and a phase of the course, which multiplies in torch alone.

    The first have rows in another order, fused matrices, and a table for each layer. Of the others, every matrix is
    compared above.
    """
    table = {"model.embed_tokens.weight": Type.Q5_K}
    path = str(write(tmp_path / "m.gguf", list(KEPT), family, **table))
    prompts = [[5, 6, 7], [9] * 40]
    settings = ({"dtype": "float32"}, {}, {"phase": "p00", "quantize": "stored"}, {"quantize": "stored"})
    found = [[done.token_ids for done in LLM(path, **CPU, **each).generate(prompts, GREEDY)] for each in settings]
    assert all(tokens == found[0] for tokens in found)


def test_logits_are_those_of_the_widened_file(tmp_path):
    path = str(write(tmp_path / "m.gguf", list(KEPT)))
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=5)
    kept, wide = (LLM(path, **CPU, **each).generate([[7] * 50], params)[0] for each in ({}, {"dtype": "float32"}))
    assert kept.token_ids == wide.token_ids
    for one, other in zip(kept.logprobs, wide.logprobs, strict=True):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        for (_, found), (_, expected) in zip(one.top, other.top, strict=True):
            assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"phase": "p01"}, {"switch_off": ["kernels"]}, {"quantize": "int8"}],
    ids=str,
)
def test_bits_are_widened_where_a_type_a_phase_or_torch_alone_is_asked_for(tmp_path, settings):
    llm = LLM(str(write(tmp_path / "m.gguf", [Type.Q4_0])), **CPU, **settings)
    assert llm.checkpoint.quantized is None
    assert not any(isinstance(part, GGUFLinear) for part in llm.engine.runner.model.modules())


def test_gpt2s_matrices_lie_transposed_and_stay_floats(tmp_path):
    names = {name: Type.Q8_0 for name in tensors_of(CONFIGS["gpt2"]) if ".c_" in name and name.endswith("weight")}
    path = write_gguf(tmp_path / "m.gguf", "gpt2", quantize=names)
    assert LLM(str(path), **CPU).checkpoint.quantized is None
    with pytest.raises(ConfigError, match="has no matrix that is stored as Q4_0, Q4_1"):
        LLM(str(path), quantize="stored", **CPU)


def test_what_has_nothing_packed_is_refused_in_one_line(tmp_path):
    folder = write_folder(tmp_path / "floats")
    floats = write_gguf(tmp_path / "m.gguf", quantize=stored_as([Type.F16]))
    for model in ("random:tiny-llama", str(folder), str(floats)):
        with pytest.raises(ConfigError, match=r"quantize stored: .* has no matrix that is stored as") as error:
            LLM(model, quantize="stored", **CPU)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KEPT)
def test_a_damaged_scale_is_said_with_its_file_and_tensor(tmp_path, kind):
    path = write(tmp_path / "m.gguf", [kind])
    entry = open_checkpoint(str(path)).tensors._file.tensors["blk.1.ffn_down.weight"]
    data, at = bytearray(path.read_bytes()), entry.start + (208 if kind == Type.Q6_K else 0)
    data[at : at + 2] = b"\xff\x00" if kind == Type.MXFP4 else b"\x00\x7e"  # NaN
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"m\.gguf: 'model\.layers\.1\.mlp\.down_proj\.weight' has scales"):
        LLM(str(path), **CPU)


@pytest.mark.parametrize(
    "settings",
    [
        {"speculate": "ngram", "drafts": 3},
        {"kv_dtype": "fp8"},
        {"cache_tokens": 256, "max_sequences": 2},
        {"switch_off": ["prefix_cache"]},
    ],
    ids=str,
)
def test_what_else_an_engine_does_works_on_them(tmp_path, settings):
    """Speculation, a cache in 8 bits, preemption, and prefixes that are found again: the same tokens as widened."""
    path = str(write(tmp_path / "m.gguf", [Type.Q4_K, Type.Q6_K, Type.Q5_0]))
    prompts, params = [[5, 6, 7, 5, 6, 7, 5, 6], [9] * 40, [9] * 44], SamplingParams(max_tokens=20, ignore_eos=True)
    found = []
    for each in ({}, {"dtype": "float32"}):
        llm = LLM(path, **CPU, **settings, **each)
        found += [[done.token_ids for done in llm.generate(prompts, params)] for _ in range(2)]
    assert all(tokens == found[0] for tokens in found)


def test_a_gguf_draft_keeps_its_bits_beside_its_model(tmp_path):
    path = str(write(tmp_path / "m.gguf", [Type.Q8_0]))
    draft = str(write(tmp_path / "d.gguf", [Type.Q4_K]))
    llm = LLM(path, speculate=f"draft:{draft}", drafts=3, max_sequences=2, cache_tokens=512, **CPU)
    assert isinstance(llm.engine.runner.step.drafter.passes.model.layers[0].output, GGUFLinear)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    found = [done.token_ids for done in llm.generate([[5, 6, 7]], params)]
    assert found == [done.token_ids for done in LLM(path, dtype="float32", **CPU).generate([[5, 6, 7]], params)]


def test_an_answer_keeps_its_form(tmp_path):
    llm = LLM(str(write(tmp_path / "m.gguf", [Type.Q4_K])), **CPU)
    params = SamplingParams(max_tokens=12, structured={"regex": "cat|mat|hat"})
    assert llm.generate(["the"], params)[0].text in ("cat", "mat", "hat")
