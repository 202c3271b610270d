"""GGUF: what llama.cpp's conversion changed is changed back, and quantized values are exactly what they encode."""

import math
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from gradus.errors import CheckpointError, ConfigError
from gradus.loading import open_checkpoint
from gradus.loading.gguf.file import GGUFFile
from gradus.models import Llama3Scaling, Rope
from gradus.models.config import LongRope, QueryGrowth, Yarn
from gradus.models.rope import frequencies
from tests.loading.builders import CONFIGS, FAMILIES, add_metadata, tensors_of, write_folder, write_gguf

NORM = "model.norm.weight"


def write(path, metadata, tensors):
    """A file of just these: metadata values by key, arrays by name."""
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "llama"))
    for key, value in metadata.items():
        add_metadata(writer, key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_and_names_are_those_of_hugging_face(tmp_path, family):
    ours = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", family)))
    theirs = open_checkpoint(str(write_folder(tmp_path / "folder", family)))
    assert sorted(ours.tensors.names()) == sorted(theirs.tensors.names())
    assert {name: ours.tensors.shape(name) for name in ours.tensors.names()} == {
        name: theirs.tensors.shape(name) for name in theirs.tensors.names()
    }
    assert ours.config.norm_eps == pytest.approx(theirs.config.norm_eps, rel=1e-6)  # a float32 in GGUF
    # generation_config.json names one more end of text
    known = replace(ours.config, norm_eps=theirs.config.norm_eps, eos_token_ids=theirs.config.eos_token_ids)
    assert known == theirs.config


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.BF16, Type.F16])
def test_quantized_tensors_have_the_values_of_their_blocks(tmp_path, kind):
    name = "model.layers.0.mlp.down_proj.weight"  # rows of 96 values: three blocks
    plain = tensors_of(CONFIGS["llama"])[name]
    path = write_gguf(tmp_path / "m.gguf", quantize={name: kind})
    found = open_checkpoint(str(path)).tensors.read(name)
    expected = gguf.quants.dequantize(gguf.quants.quantize(plain.numpy(), kind), kind)
    assert torch.equal(found.float(), torch.from_numpy(expected))
    assert (found.float() - plain).abs().max() < 0.5  # and they are the right ones, roughly


def test_large_tensors_are_dequantized_the_same_in_pieces(tmp_path):
    values = np.random.default_rng(0).standard_normal((300, 512), dtype=np.float32)  # 4800 blocks: more than one piece
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", gguf.quants.quantize(values, Type.Q4_1), raw_dtype=Type.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = gguf.quants.dequantize(gguf.quants.quantize(values, Type.Q4_1), Type.Q4_1)
    assert np.array_equal(GGUFFile(path).read("t").numpy(), expected)


def test_metadata_of_every_type_is_read(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    pairs = {"u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31)}
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("texts", ["a", "", "ß"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = pairs | {
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "flag": True,
        "text": "naïve",
        "numbers": [1, 2, 3],
        "texts": ["a", "", "ß"],
    }
    found = GGUFFile(path).metadata
    assert {key: found[key] for key in expected} == expected


LLAMA = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 500000.0,
}
EMBEDDING = {"token_embd.weight": np.zeros((8, 32), np.float32)}
YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 16,
}


def config_of(path, architecture, more=None, tensors=None):
    """The configuration of a file of another architecture: LLAMA's keys, and `more` without their prefix."""
    metadata = {key.replace("llama", architecture): value for key, value in LLAMA.items()}
    metadata |= {f"{architecture}.{key}": value for key, value in (more or {}).items()}
    written = write(path, {"general.architecture": architecture} | metadata, EMBEDDING | (tensors or {}))
    return open_checkpoint(str(written)).config


def test_llama3_scaling_is_recognized_by_its_factors(tmp_path):
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    rope = Rope(500000.0, scaling)
    factors = (frequencies(Rope(500000.0), 16, 64) / frequencies(rope, 16, 64)).numpy()
    path = write(tmp_path / "m.gguf", dict(LLAMA), EMBEDDING | {"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.config.ropes == (rope,)
    assert "rope_freqs.weight" not in checkpoint.tensors.names()
    path = write(tmp_path / "n.gguf", dict(LLAMA), EMBEDDING | {"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(CheckpointError, match="does not hold the factors of Llama 3's scaling"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scale_linear": 8.0, "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, None),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.factor": 1.0}, None),
    ],
)
def test_positions_are_scaled_as_in_llama_cpp(tmp_path, keys, factor):
    more = {f"llama.{key}": value for key, value in keys.items()}
    rope = open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | more, EMBEDDING))).config.ropes[0]
    assert (rope.scaling and rope.scaling.factor) == factor


@pytest.mark.parametrize(
    ("more", "amplitude"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"yarn_log_multiplier": 1.0}, 1.0),
        ({"yarn_log_multiplier": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        ({"attn_factor": 0.5}, 0.5 * (0.1 * math.log(4) + 1)),
        ({"yarn_attn_factor": 1.25}, 1.25),  # what config.json calls attention_factor
    ],
)
def test_yarn_sharpens_scores_as_in_llama_cpp(tmp_path, more, amplitude):
    keys = {f"llama.rope.scaling.{key}": value for key, value in more.items()}
    rope = open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | YARN | keys, EMBEDDING))).config.ropes[0]
    assert rope == Rope(500000.0, Yarn(4.0, 16, amplitude=rope.scaling.amplitude))
    assert rope.scaling.amplitude == pytest.approx(amplitude, rel=1e-7)


def test_yarns_bounds_are_read(tmp_path):
    more = {"llama.rope.scaling.yarn_beta_fast": 8.0, "llama.rope.scaling.yarn_beta_slow": 2.0}
    rope = open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | YARN | more, EMBEDDING))).config.ropes[0]
    assert (rope.scaling.fast, rope.scaling.slow, rope.scaling.original_context) == (8.0, 2.0, 16)


def test_ministral3s_queries_grow_beyond_the_trained_context(tmp_path):
    more = {key.removeprefix("llama."): value for key, value in YARN.items()} | {"attention.temperature_scale": 0.5}
    config = config_of(tmp_path / "m.gguf", "mistral3", more)
    assert config.family == "ministral3" and config.ropes[0].growth == QueryGrowth(0.5, 16)
    assert config_of(tmp_path / "n.gguf", "mistral3").ropes == (Rope(500000.0),), "Mistral Small 3"
    with pytest.raises(CheckpointError, match="temperature_length other than the trained context, 16, is not supp"):
        config_of(tmp_path / "o.gguf", "mistral3", more | {"attention.temperature_length": 32})


def test_phi3_turns_a_part_of_each_head_by_factors_of_its_own(tmp_path):
    factors = {
        f"rope_factors_{kind}.weight": np.array(values, np.float32)
        for kind, values in (("long", [2.0, 3.0, 4.0]), ("short", [1.0, 1.5, 2.0]))
    }
    more = {"rope.dimension_count": 6, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.25}
    config = config_of(tmp_path / "m.gguf", "phi3", more | {"attention.sliding_window": 8}, factors)
    scaling = LongRope((1.0, 1.5, 2.0), (2.0, 3.0, 4.0), 16, 1.25)
    assert config.ropes == (Rope(500000.0, scaling, turned=6),)
    assert config.windows == (8,), "the model's, although llama.cpp computes none"
    assert config_of(tmp_path / "n.gguf", "phi3", {"attention.sliding_window": 0}).windows == (None,)


def test_olmo3_is_olmo2_with_windows(tmp_path):
    yarn = {key.removeprefix("llama."): value for key, value in YARN.items()}
    assert config_of(tmp_path / "2.gguf", "olmo2", {"block_count": 4}).family == "olmo2"
    three = config_of(tmp_path / "3.gguf", "olmo2", {"block_count": 4, "attention.sliding_window": 16} | yarn)
    assert (three.family, three.windows) == ("olmo3", (16, 16, 16, None))
    scaled = Rope(500000.0, Yarn(4.0, 16, amplitude=0.1 * math.log(4) + 1))
    assert three.ropes == (*[Rope(500000.0)] * 3, scaled), "layers with a window turn at the plain frequencies"


def test_granites_multipliers_are_read_and_parts_that_it_lacks_change_nothing(tmp_path):
    scales = {"attention.scale": 0.5, "embedding_scale": 12.0, "residual_scale": 0.25, "logit_scale": 8.0}
    config = config_of(tmp_path / "m.gguf", "granite", scales)
    found = config.attention_scale, config.embedding_scale, config.residual_scale, config.logit_scale
    assert found == (0.5, 12.0, 0.25, 0.125)
    plain = config_of(tmp_path / "n.gguf", "granite", {"logit_scale": 1.0})
    assert (plain.attention_scale, plain.embedding_scale, plain.residual_scale) == (0.25, 1.0, 1.0)
    dense = {  # what Granite 4's conversion writes for models that attend in every layer
        "ssm.conv_kernel": 4, "ssm.inner_size": 64, "expert_count": 0, "expert_shared_feed_forward_length": 32,
        "attention.head_count_kv": [2], "rope.scaling.finetuned": True,
    }  # fmt: skip
    assert config_of(tmp_path / "o.gguf", "granite", scales | dense) == config
    assert config_of(tmp_path / "p.gguf", "granitehybrid", scales | dense) == config
    state = {"blk.0.ssm_in.weight": np.zeros((8, 32), np.float32)}
    for more, tensors, words in (
        ({}, state, "layers with a state are not supported"),
        ({"rope.scaling.finetuned": False}, {}, "rope.scaling.finetuned = False leaves out rotary positions"),
        ({"attention.head_count_kv": [0, 2], "block_count": 2}, {}, "head_count_kv must be an integer, got [0, 2]"),
    ):
        with pytest.raises(CheckpointError) as error:
            config_of(tmp_path / "w.gguf", "granitehybrid", scales | more, tensors)
        assert words in str(error.value)


GEMMA4 = {
    "block_count": 3, "attention.key_length": 16, "attention.key_length_swa": 8, "attention.head_count_kv": [2, 1, 1],
    "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False, False],
    "attention.shared_kv_layers": 1, "feed_forward_length": [32, 32, 64], "final_logit_softcapping": 30.0,
}  # fmt: skip
QUARTER = {"rope_freqs.weight": np.array([1.0, 1.0, *[1e30] * 6], np.float32)}


def test_gemma4s_layers_have_the_sizes_that_the_file_lists(tmp_path):
    config = config_of(tmp_path / "m.gguf", "gemma4", GEMMA4, QUARTER)
    assert [config.layer(layer) for layer in range(3)] == [
        replace(config, sizes=(), num_kv_heads=heads, head_dim=width, intermediate_size=features)
        for heads, width, features in ((2, 8, 32), (1, 16, 32), (1, 16, 64))
    ]
    assert (config.windows, config.kv_sources) == ((16, None, None), (0, 1, 1))
    whole = Rope(500000.0, turned=4, proportional=True)
    assert config.ropes == (Rope(10000.0), whole, whole)
    assert (config.attention_scale, config.final_softcap, config.per_layer_width) == (1.0, 30.0, 0)
    assert config.keys_as_values == (False, True, False), "no layer that sees everything has attn_v"


@pytest.mark.parametrize(
    ("more", "tensors", "words"),
    [
        ({"attention.scale": 0.5}, {}, "attention.scale other than 1 is not supported"),
        ({"attention.value_length": 8}, {}, "attention.value_length other than the keys' length, 16"),
        ({"rope.dimension_count_swa": 4}, {}, "rope.dimension_count_swa other than the keys' length, 8"),
        ({"feed_forward_length": [32, 64, 64]}, {}, "feed_forward_length must be the same in all layers, or twice in"),
        ({"attention.head_count_kv": [2, 1]}, {}, "head_count_kv must be an integer, or one for each of 3 layers"),
        ({"expert_count": 4}, {}, "gemma4.expert_used_count is missing"),
        ({"altup.num_inputs": 4}, {}, "altup.num_inputs = 4 changes what the model computes"),
        ({}, {"rope_freqs.weight": np.array([1.0, 2.0, *[1e30] * 6], np.float32)}, "the factors of Gemma 4's rotation"),
        ({}, {"rope_freqs.weight": np.ones(4, np.float32)}, "does not hold the factors of Gemma 4's rotation"),
    ],
)
def test_what_gemma4_is_not_is_refused_in_one_line(tmp_path, more, tensors, words):
    with pytest.raises(CheckpointError) as error:
        config_of(tmp_path / "m.gguf", "gemma4", GEMMA4 | more, QUARTER | tensors)
    assert str(error.value).startswith("m.gguf: ") and words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        *((each, {"attention.head_count": 0}) for each in ("llama", "phi3", "granite", "gemma4")),
        *((each, {"attention.key_length": 0}) for each in ("llama", "phi3", "granite", "gemma4", "gemma3")),
        *((each, {"block_count": 0}) for each in ("llama", "olmo2", "gemma4", "gemma3")),
        *((each, {"block_count": 1 << 31, "attention.sliding_window_pattern": 2}) for each in ("olmo2", "gemma4")),
        ("llama", {"block_count": 0, "attention.head_count_kv": []}),
        ("gemma4", {"attention.shared_kv_layers": 9}),
        ("gemma4", {"attention.head_count_kv": []}),
        ("granite", {"logit_scale": 0.0}),
        ("granite", {"residual_scale": -1.0}),
        ("mistral3", {"attention.temperature_scale": float("nan")}),
        *(
            ("llama", {key.removeprefix("llama."): value for key, value in YARN.items()} | more)
            for more in (
                {"rope.scaling.factor": 0.0},
                {"rope.scaling.original_context_length": 0},
                {"rope.scaling.yarn_log_multiplier": -10.0},
                {"rope.scaling.yarn_log_multiplier": float("nan")},
                {"rope.scaling.yarn_beta_fast": float("inf")},
            )
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_one_line(tmp_path, architecture, more):
    window = {"attention.sliding_window": 16}
    usual = {"gemma4": GEMMA4, "granite": {"logit_scale": 8.0}, "olmo2": window, "gemma3": window}.get(architecture, {})
    with pytest.raises((CheckpointError, ConfigError)) as error:
        config_of(tmp_path / "m.gguf", architecture, usual | more, QUARTER if architecture == "gemma4" else {})
    assert str(error.value).startswith("m.gguf: ") and "\n" not in str(error.value)


def test_a_number_may_be_listed_for_each_layer(tmp_path):
    more = {"llama.block_count": 2, "llama.feed_forward_length": [32, 32], "llama.attention.head_count": [2, 2]}
    config = open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | more, EMBEDDING))).config
    assert (config.intermediate_size, config.num_heads) == (32, 2)


def test_linear_scaling_and_absent_keys_have_their_meaning(tmp_path):
    more = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 8.0}
    config = open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | more, EMBEDDING))).config
    assert config.ropes[0].scaling.factor == 8.0
    assert (config.num_kv_heads, config.head_dim, config.tie_embeddings, config.vocab_size) == (2, 16, True, 8)
    assert config.eos_token_ids == () and open_checkpoint(str(tmp_path / "m.gguf")).tokenizer is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"llama.rope.scaling.type": "dynamic"}, "rope scaling 'dynamic' is not supported; supported are none, linear"),
        ({"llama.rope.scaling.type": "yarn"}, "factor"),
        (YARN | {"llama.rope.scaling.yarn_ext_factor": 0.5}, "rope.scaling.yarn_ext_factor other than 1"),
        ({"llama.rope.scaling.type": "longrope"}, "tensor 'rope_factors_long.weight' is missing, which LongRoPE needs"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama.rope.dimension_count": 8}, "16 values with 8 of them rotated"),
        ({"llama.attention.value_length": 8}, "values of 8"),
        ({"llama.feed_forward_length": [1, 2]}, "feed_forward_length must be an integer, got [1, 2]"),
        ({"llama.attention.layer_norm_rms_epsilon": "small"}, "must be a number, got 'small'"),
        ({"llama.rope.scaling.factor": -2.0}, "factor"),
        (
            {"general.architecture": "phi2"},
            "architecture 'phi2' is not supported: nothing here computes it; the nearest",
        ),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(tmp_path, more, words):
    with pytest.raises((CheckpointError, ConfigError)) as error:
        open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | more, EMBEDDING)))
    assert str(error.value).startswith("m.gguf: ") and words in str(error.value)


def test_gemmas_largest_size_scales_its_queries_by_width(tmp_path):
    layers = {key.replace("llama", "gemma3"): value for key, value in LLAMA.items()} | {
        "gemma3.attention.sliding_window": 16,
        "gemma3.attention.key_length": 8,
        "gemma3.attention.value_length": 8,
    }
    scale = {}
    for depth in (61, 62):
        metadata = {"general.architecture": "gemma3"} | layers | {"gemma3.block_count": depth}
        scale[depth] = open_checkpoint(
            str(write(tmp_path / f"{depth}.gguf", metadata, EMBEDDING))
        ).config.attention_scale
    assert scale == {61: 8**-0.5, 62: 16**-0.5}


# -- keys that change the model ----------------------------------------------------------------------------------------

HARMLESS = {  # they describe, or belong to parts that no file of ours has
    "vocab_size", "tensor_data_layout", "pooling_type", "n_deepstack_layers", "decoder_start_token_id",
    "classifier.output_labels", "decoder_block_count", "rope.scaling.finetuned", "rope.scaling.original_context_length",
    "attention.layer_norm_epsilon",
}  # fmt: skip
READ = {  # with values that the reader must accept or refuse by their own rules
    "context_length", "embedding_length", "block_count", "feed_forward_length", "expert_count", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "attention.sliding_window", "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scale_linear",
}  # fmt: skip


def keys_of_llama_cpp():
    """Every key of an architecture that the gguf package knows: with a new version, new ones fall to the test below."""
    groups = [group for name, group in vars(gguf.constants.Keys).items() if not name.startswith("_")]
    texts = [text for group in groups for text in vars(group).values() if isinstance(text, str)]
    return sorted(text.replace("{dense}", "dense_2")[7:] for text in texts if text.startswith("{arch}."))


@pytest.mark.parametrize("key", sorted({*keys_of_llama_cpp(), "rope.scale_linear", "attention.unheard_of"} - READ))
def test_a_key_that_changes_the_model_is_refused_by_name(tmp_path, key):
    def opened(value):
        return open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | {f"llama.{key}": value}, EMBEDDING))).config

    plain = open_checkpoint(str(write(tmp_path / "plain.gguf", dict(LLAMA), EMBEDDING))).config
    assert opened(0 if key != "attention.causal" else True) == plain
    if key in HARMLESS:
        assert opened(7.5) == plain
        return
    with pytest.raises(CheckpointError) as error:
        opened(7.5)
    assert f"m.gguf: metadata llama.{key} = 7.5 changes what the model computes, and is not supported" == str(
        error.value
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.25),  # 16 ** -0.5
        ("logit_scale", 1.0),
        ("rope.scaling.attn_factor", 1.0),
        ("embedding_length_out", 32),
        ("attention.key_length_swa", 16),
        ("rope.dimension_sections", [0, 0]),
        ("attention.sliding_window", 64),
        ("attention.causal", True),
        ("rope.global.freq_base", 500000.0),
    ],
)
def test_a_key_that_says_what_the_model_does_anyway_is_taken(tmp_path, key, value):
    plain = open_checkpoint(str(write(tmp_path / "plain.gguf", dict(LLAMA), EMBEDDING))).config
    assert open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | {f"llama.{key}": value}, EMBEDDING))).config == plain


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention.causal", False, "attention.causal = False changes"),
        ("attention.sliding_window", 32, "attention.sliding_window = 32 is shorter than the context of 64"),
        ("rope.dimension_sections", [8, 8], "rope.dimension_sections = [8, 8] changes"),
        ("attention.scale", 0.5, "attention.scale = 0.5 changes"),
        ("logit_scale", "twice", "logit_scale = 'twice' changes"),
    ],
)
def test_a_value_that_matters_is_refused(tmp_path, key, value, words):
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(write(tmp_path / "m.gguf", LLAMA | {f"llama.{key}": value}, EMBEDDING)))
    assert words in str(error.value)


def test_positions_are_not_scaled_twice(tmp_path):
    factors = (
        frequencies(Rope(500000.0), 16, 64) / frequencies(Rope(500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)), 16, 64)
    ).numpy()
    path = write(
        tmp_path / "m.gguf", LLAMA | {"llama.rope.scaling.factor": 4.0}, EMBEDDING | {"rope_freqs.weight": factors}
    )
    with pytest.raises(CheckpointError, match="scale positions twice"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("pattern", "full"), [(6, [5]), (3, [2, 5]), ([True, False] * 3, [1, 3, 5]), (None, [5])])
def test_the_layers_with_windows_are_those_that_the_file_names(tmp_path, pattern, full):
    layers = {key.replace("llama", "gemma3"): value for key, value in LLAMA.items()} | {
        "general.architecture": "gemma3", "gemma3.block_count": 6, "gemma3.attention.sliding_window": 16,
        "gemma3.final_logit_softcapping": 0.0,
    }  # fmt: skip
    more = {} if pattern is None else {"gemma3.attention.sliding_window_pattern": pattern}
    config = open_checkpoint(str(write(tmp_path / "m.gguf", layers | more, EMBEDDING))).config
    assert [layer for layer, window in enumerate(config.windows) if window is None] == full
    assert config.final_softcap is None
    for wrong in ([True] * 5, ["x"] * 6):
        with pytest.raises(CheckpointError, match="sliding_window_pattern must say it of each layer"):
            open_checkpoint(
                str(write(tmp_path / "w.gguf", layers | {"gemma3.attention.sliding_window_pattern": wrong}, EMBEDDING))
            )
