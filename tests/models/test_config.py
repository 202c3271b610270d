"""A configuration is read as transformers reads it, or refused in one line that names the key."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradus.errors import ConfigError
from gradus.models.config import (
    Experts,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    Rope,
    Yarn,
    active_parameters,
    even_position,
    kv_bytes_per_token,
    parameter_count,
    parameters_per_token,
)
from gradus.models.families.records import FAMILIES, read_config, write_config
from gradus.models.shapes import SHAPES


def without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name != key}


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": [257, 258],
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 320,
    "n_positions": 512,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 256,
    "eos_token_id": 256,
}
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "head_dim": 24,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "vocab_size_per_layer_input": 320,
    "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32, "num_key_value_heads": 1}},
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5}},
}
QWEN2 = LLAMA | {"model_type": "qwen2", "rope_scaling": None, "use_sliding_window": True}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 24, "rope_scaling": None, "use_sliding_window": True}
MISTRAL = LLAMA | {"model_type": "mistral", "rope_scaling": None, "sliding_window": 16}
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "bos_token_id": 256,
    "eos_token_id": 257,
}
GRANITE4 = without(LLAMA, "rope_scaling") | {
    "model_type": "granitemoehybrid",
    "num_local_experts": 0,
    "layer_types": ["attention"] * 2,
    "shared_intermediate_size": 160,
    "position_embedding_type": "rope",
}
DENSE = [LLAMA, GPT2, QWEN2, QWEN3, MISTRAL, GEMMA3, GEMMA4, {"model_type": "gemma3", "text_config": GEMMA3}]
EXPERTS = {
    name: without(LLAMA, "rope_scaling") | {"num_experts_per_tok": 2} | own
    for name, own in {
        "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "sliding_window": 16},
        "qwen2_moe": {"model_type": "qwen2_moe", "num_experts": 8, "shared_expert_intermediate_size": 48,
                      "mlp_only_layers": [0], "decoder_sparse_step": 1, "use_sliding_window": True,
                      "moe_intermediate_size": 32},
        "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 32, "norm_topk_prob": True,
                      "mlp_only_layers": [1], "decoder_sparse_step": 1, "use_sliding_window": True},
        "olmoe": {"model_type": "olmoe", "num_experts": 8, "norm_topk_prob": False, "clip_qkv": None},
        "granitemoe": {"model_type": "granitemoe", "num_local_experts": 8, "residual_multiplier": 0.5},
        "granitemoeshared": {"model_type": "granitemoeshared", "num_local_experts": 8, "shared_intermediate_size": 48},
        "granitemoehybrid": {"model_type": "granitemoehybrid", "num_local_experts": 8, "shared_intermediate_size": 48,
                             "layer_types": ["attention"] * 2},
        "gpt_oss": {"model_type": "gpt_oss", "num_local_experts": 8, "sliding_window": 16, "swiglu_limit": 7.0,
                    "layer_types": ["sliding_attention", "full_attention"]},
        "glm4_moe": {"model_type": "glm4_moe", "n_routed_experts": 8, "moe_intermediate_size": 32, "n_group": 4,
                     "topk_group": 2, "first_k_dense_replace": 1, "n_shared_experts": 1, "use_qk_norm": True,
                     "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5},
        "gemma4": GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
                            "moe_intermediate_size": 32},
    }.items()
}  # fmt: skip
ALL = [*DENSE, *EXPERTS.values()]


# ---- What is read ----------------------------------------------------------------------------------------------------


def test_both_spellings_of_rope_mean_the_same() -> None:
    parameters = LLAMA["rope_scaling"] | {"rope_theta": 500000.0}
    newer = without(without(LLAMA, "rope_scaling"), "rope_theta") | {"rope_parameters": parameters}
    both = LLAMA | {"rope_parameters": parameters}
    older = LLAMA | {"rope_scaling": without(LLAMA["rope_scaling"], "rope_type") | {"type": "llama3"}}
    wanted = Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 128))
    assert [read_config(raw).ropes[0] for raw in (LLAMA, newer, older, both)] == [wanted] * 4


@pytest.mark.parametrize(
    ("raw", "trained"), [(QWEN2, 32_768), (QWEN3, 40_960)], ids=["as Qwen 2.5's page says", "as Qwen 3's page says"]
)
def test_yarn_extends_qwen_beyond_its_trained_length(raw: dict[str, Any], trained: int) -> None:
    numbers = {"factor": 4.0, "original_max_position_embeddings": 32_768}
    raw = raw | {"max_position_embeddings": trained, "rope_theta": 1e6}
    older = [raw | {"rope_scaling": {key: "yarn", **numbers}} for key in ("type", "rope_type")]
    parameters = {"rope_type": "yarn", "rope_theta": 1e6, **numbers}
    newer = without(without(raw, "rope_scaling"), "rope_theta") | {"rope_parameters": parameters}
    plain, *found = map(read_config, (raw, *older, newer))
    rope = Rope(1e6, Yarn(4.0, 32_768, amplitude=0.1 * math.log(4) + 1))
    assert found == [replace(plain, ropes=(rope,) * 2, context_length=131_072)] * 3
    assert plain.context_length == trained and read_config(write_config(found[0])) == found[0]


def test_both_spellings_of_gemmas_two_ropes_mean_the_same() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    newer = {key: value for key, value in GEMMA3.items() if not key.startswith("rope")} | {"rope_parameters": nested}
    config = read_config(newer)
    assert config == read_config(GEMMA3)
    assert set(zip(config.windows, config.ropes, strict=True)) == {
        (None, Rope(1e6, LinearScaling(8.0))),
        (16, Rope(1e4)),
    }


def test_absent_head_dim_and_kv_heads_follow_the_query_heads() -> None:
    config = read_config(without(LLAMA, "num_key_value_heads"))
    assert (config.num_kv_heads, config.head_dim, config.attention_scale) == (4, 16, 0.25)
    assert read_config(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4


def test_head_dim_need_not_divide_the_hidden_size() -> None:
    assert read_config(LLAMA | {"hidden_size": 66, "head_dim": 24}).head_dim == 24


@pytest.mark.parametrize(("raw", "wanted"), [(7, (7,)), ([7, 8, 7], (7, 8)), (None, ()), ([], ())])
def test_end_tokens_may_be_one_several_or_none(raw: object, wanted: tuple[int, ...]) -> None:
    assert read_config(LLAMA | {"eos_token_id": raw}).eos_token_ids == wanted


def test_the_architecture_class_stands_in_for_an_absent_model_type() -> None:
    raw = without(LLAMA, "model_type") | {"architectures": ["LlamaForCausalLM"]}
    assert read_config(raw) == read_config(LLAMA)


def test_code_in_a_configuration_is_ignored() -> None:
    raw = LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    assert read_config(raw) == read_config(LLAMA)


def test_mistral_has_a_window_in_every_layer_unless_null() -> None:
    assert read_config(MISTRAL).windows == (16, 16)
    assert read_config(MISTRAL | {"sliding_window": None}).windows == (None, None)
    assert read_config(MISTRAL | {"sliding_window": 512}).windows == (None, None)  # hides nothing
    longer = without(MISTRAL, "sliding_window") | {"max_position_embeddings": 8192}
    assert read_config(longer).windows == (4096, 4096)


def test_qwen2_has_biases_on_queries_keys_and_values_and_nowhere_else() -> None:
    config = read_config(QWEN2 | {"attention_bias": False, "mlp_bias": True})  # keys that it does not have
    assert (config.attention_bias, config.attention_output_bias, config.mlp_bias) == (True, False, False)
    assert (config.family, config.head_dim) == ("qwen2", 16)


@pytest.mark.parametrize("qwen", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_qwens_windows_follow_their_three_keys(qwen: dict[str, Any]) -> None:
    raw = qwen | {"sliding_window": 16, "max_window_layers": 1}
    assert read_config(raw).windows == (None, 16)
    assert read_config(raw | {"use_sliding_window": False}).windows == (None, None)
    types = ["sliding_attention", "full_attention"]
    assert read_config(raw | {"layer_types": types}).windows == (16, None)


def test_gemmas_pattern_leaves_every_so_many_layers_global() -> None:
    assert read_config(GEMMA3).windows == (16, None, 16, None)
    usual = without(GEMMA3, "sliding_window_pattern") | {"num_hidden_layers": 7}
    assert read_config(usual).windows == (16, 16, 16, 16, 16, None, 16)


def test_the_text_part_of_a_multimodal_gemma_is_taken() -> None:
    raw = {"model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"x": 1}, "text_config": GEMMA3}
    assert read_config(raw) == read_config(GEMMA3 | {"eos_token_id": [1, 106]})


def test_a_dense_layer_keeps_its_width_next_to_layers_with_experts() -> None:
    config = read_config(EXPERTS["qwen2_moe"])
    assert [config.layer(layer).intermediate_size for layer in range(2)] == [160, 48]
    assert config.experts == (None, Experts(8, 2, 32, normalized=False)) and config.shared_gate
    config = read_config(EXPERTS["mixtral"])
    assert (config.intermediate_size, config.sizes, config.experts) == (0, (), (Experts(8, 2, 160),) * 2)


def test_what_gpt_oss_leaves_out_is_its_own() -> None:
    plain = without(without(EXPERTS["gpt_oss"], "rope_theta"), "layer_types")
    config = read_config(plain | {"max_position_embeddings": 131_072})
    assert config.windows == (16, None) and config.context_length == 131_072
    assert config.ropes[0] == Rope(150_000.0, Yarn(32.0, 4096, whole=False, amplitude=0.1 * math.log(32) + 1))


def test_unscaled_gpt2_scores() -> None:
    assert read_config(GPT2).attention_scale == 0.25
    assert read_config(GPT2 | {"scale_attn_weights": False}).attention_scale == 1.0


# ---- What is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[object, str]] = [
    ([1, 2], "it must be a JSON object, got [1, 2]"),
    ({}, "model_type is missing"),
    (
        LLAMA | {"model_type": "falcon"},
        "model_type 'falcon' is not supported: nothing here computes it; `gradus models",
    ),
    (LLAMA | {"model_type": ["llama"]}, "model_type ['llama'] is not supported: nothing here computes it"),
    (
        LLAMA | {"model_type": "qwen3_5"},
        "model_type 'qwen3_5' is not supported: layers with a state are not computed; "
        "Qwen3-4B (qwen3) is the nearest that loads",
    ),
    (
        {"architectures": ["BertModel"]},
        "architecture 'BertModel' is not supported: encoders are not computed, only decoders of text; ",
    ),
    (LLAMA | {"model_type": "llama5"}, "the nearest name that is supported is llama; `gradus models --families` lists"),
    (
        GRANITE4 | {"layer_types": ["mamba", "attention"]},
        "layer_types has 'mamba' layers: layers with a state are not computed; Granite-4.0-1B (granitemoehybrid)",
    ),
    (GRANITE4 | {"layer_types": ["attention"]}, "layer_types must list 2 layers, got ['attention']"),
    (
        {"model_type": "mistral3", "text_config": LLAMA | {"model_type": "mistral4"}},
        "text_config.model_type 'mistral4' is not supported: latent attention is not computed; Mistral-Small",
    ),
    (without(LLAMA, "hidden_size"), "hidden_size is missing (expected an integer between 1 and"),
    (LLAMA | {"hidden_size": None}, "hidden_size is missing"),
    (LLAMA | {"hidden_size": "64"}, "hidden_size must be an integer between 1 and 16777216, got '64'"),
    (LLAMA | {"hidden_size": 64.0}, "hidden_size must be an integer between 1 and 16777216, got 64.0"),
    (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers must be an integer between 1 and 4096, got True"),
    (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers must be an integer between 1 and 4096, got 0"),
    (LLAMA | {"vocab_size": -1}, "vocab_size must be an integer between 1 and 16777216, got -1"),
    (LLAMA | {"vocab_size": 10**5000}, "vocab_size must be an integer between 1 and 16777216, got an integer of 16610"),
    (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0 and below 1e12, got 0"),
    (LLAMA | {"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0 and below 1e12, got nan"),
    (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
    (LLAMA | {"hidden_act": "relu6"}, "hidden_act must be one of gelu, gelu_fast"),
    (LLAMA | {"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads evenly"),
    (LLAMA | {"num_attention_heads": 6}, "hidden_size 64 is not a multiple of num_attention_heads 6"),
    (LLAMA | {"head_dim": 15}, "head_dim must be even for rotary positions, got 15"),
    (LLAMA | {"eos_token_id": 320}, "eos_token_id 320 is not in the vocabulary of 320 tokens"),
    (LLAMA | {"bos_token_id": 999}, "bos_token_id 999 is not in the vocabulary of 320 tokens"),
    (LLAMA | {"bos_token_id": -1}, "bos_token_id must be an integer between 0 and"),
    (LLAMA | {"eos_token_id": [1, "2"]}, "eos_token_id must be a token id or a list of them, got [1, '2']"),
    (LLAMA | {"rope_scaling": [8]}, "rope_scaling must be a JSON object, got [8]"),
    (
        LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        "rope_scaling.rope_type 'dynamic' is not supported; supported are default, linear, llama3, yarn and longrope",
    ),
    (LLAMA | {"rope_scaling": {"factor": 4.0}}, "rope_scaling.rope_type is missing"),
    (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be a number above 0"),
    (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
    (
        LLAMA | {"rope_parameters": LLAMA["rope_scaling"] | {"rope_theta": 10000.0}},
        "rope_theta 500000.0 contradicts rope_parameters.rope_theta 10000.0",
    ),
    (LLAMA | {"rope_parameters": {"rope_type": "default"}}, "rope_scaling contradicts rope_parameters"),
    (
        GEMMA3 | {"rope_parameters": {"full_attention": {"rope_theta": 1e5}}},
        "rope_theta 1000000.0 contradicts rope_parameters.full_attention.rope_theta 100000.0",
    ),
    (LLAMA | {"rope_parameters": {"rope_theta": "big"}}, "rope_parameters.rope_theta must be a number above 0"),
    (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor other than 1 is not supp"),
    (
        LLAMA | {"rope_scaling": LLAMA["rope_scaling"] | {"high_freq_factor": 1.0}},
        "high_freq_factor must be above low_freq_factor 1.0, got 1.0",
    ),
    (QWEN3 | {"layer_types": ["full_attention"]}, "1 layer types are given for 2 layers"),
    (QWEN3 | {"layer_types": ["full_attention", "linear"]}, "layer_types must be a list of 'full_attention' and"),
    (
        QWEN3 | {"use_sliding_window": False, "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types has sliding attention, but no window is set",
    ),
    (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is set, but"),
    (GPT2 | {"n_head": 5}, "n_embd 64 is not a multiple of n_head 5"),
    (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention is set, but"),
    ({"model_type": "gemma3"}, "text_config is missing"),
    (EXPERTS["mixtral"] | {"num_experts_per_tok": 9}, "9 of 8 experts cannot be chosen"),
    (EXPERTS["mixtral"] | {"num_local_experts": 0}, "num_local_experts must be an integer between 1 and"),
    (EXPERTS["olmoe"] | {"clip_qkv": 8.0}, "clip_qkv is 8.0, but queries, keys and values are not cut"),
    (EXPERTS["gpt_oss"] | {"swiglu_limit": 9.0}, "swiglu_limit is 9.0, but the gate is computed with 7.0 alone"),
    (EXPERTS["gpt_oss"] | {"hidden_act": "gelu"}, "hidden_act must be one of silu, got 'gelu'"),
    (EXPERTS["glm4_moe"] | {"n_group": 3}, "8 experts cannot be chosen from 2 of 3 equal groups"),
    (EXPERTS["glm4_moe"] | {"topk_group": 5}, "8 experts cannot be chosen from 5 of 4 equal groups"),
    (
        EXPERTS["glm4_moe"] | {"num_experts_per_tok": 5},
        "2 groups of 2 experts have no 5 to choose",
    ),
    (
        EXPERTS["glm4_moe"] | {"first_k_dense_replace": 2},
        "first_k_dense_replace 2 leaves none of 2 layers with experts",
    ),
    (EXPERTS["qwen3_moe"] | {"mlp_only_layers": 1}, "mlp_only_layers must be a list of layers' numbers, got 1"),
    (
        EXPERTS["qwen3_moe"] | {"decoder_sparse_step": 3},
        "mlp_only_layers or decoder_sparse_step leaves none of 2 layers with experts",
    ),
    (EXPERTS["gemma4"] | {"top_k_experts": None}, "top_k_experts is missing"),
    ({"model_type": "gemma3", "text_config": GEMMA3 | {"head_dim": 0}}, "text_config.head_dim must be an integer"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_each_mistake_has_its_line(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(raw)
    assert message in str(caught.value)
    assert str(caught.value).startswith("model configuration: ") and "\n" not in str(caught.value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([0, -1, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(raw: dict[str, Any]) -> list[tuple[str, ...]]:
    inside = [(key, *rest) for key, value in raw.items() if isinstance(value, dict) for rest in paths(value)]
    return [(key,) for key in raw] + inside


def damaged(raw: dict[str, Any], path: tuple[str, ...], junk: object) -> dict[str, Any]:
    return raw | {path[0]: junk if len(path) == 1 else damaged(raw[path[0]], path[1:], junk)}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), raw=st.sampled_from(ALL))
def test_one_junk_value_gives_a_configuration_or_one_line(data: st.DataObject, raw: dict[str, Any]) -> None:
    read_or_refused(damaged(raw, data.draw(st.sampled_from(paths(raw))), data.draw(JUNK)))


@settings(max_examples=100, deadline=None)
@given(
    raw=JUNK,
    model_type=st.sampled_from(sorted(kind for family in FAMILIES.values() for kind in family.types)),
)
@example(raw={"text_config": {}}, model_type="gemma3")
def test_anything_at_all_gives_a_configuration_or_one_line(raw: object, model_type: str) -> None:
    read_or_refused(raw)
    if isinstance(raw, dict):
        read_or_refused(raw | {"model_type": model_type})


def read_or_refused(raw: Any) -> None:
    try:
        assert isinstance(read_config(raw), ModelConfig)
    except ConfigError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 450


# ---- The named shapes ------------------------------------------------------------------------------------------------

PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    # Published counts of Gemma 4 are those of the GGUF files, with 256 factors of rotary positions. E2B's and E4B's
    # include keys and values of layers that attend to another's, which nothing reads. Keys of 12B and 31B that are
    # values are stored twice here.
    "gemma4-e2b": 4_647_450_147 - 256 - 16 * (2 * 1536 * 256 + 256) - 4 * (2 * 1536 * 512 + 512),
    "gemma4-e4b": 7_518_069_290 - 256 - 15 * (2 * 2560 * 512 + 256) - 3 * (2 * 2560 * 1024 + 512),
    "gemma4-12b": 11_907_350_576 - 256 + 8 * 3840 * 512,
    "gemma4-31b": 30_697_345_596 - 256 + 10 * 5376 * 4 * 512,
    "smollm3-3b": 3_075_098_624,
    "ministral3-3b": 3_429_006_336,
    "ministral3-8b": 8_489_553_920,
    "mistral-small-24b": 23_572_403_200,
    "phi3.5-mini": 3_821_079_552,
    "phi4-mini": 3_836_021_760,
    "phi4-14b": 14_659_507_200,
    "olmo2-1b": 1_484_916_736,
    "olmo3-7b": 7_298_011_136,
    "granite3.3-2b": 2_533_539_840,
    "granite4-1b": 1_631_750_144,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "olmoe-7b": 6_919_161_856,
    "granite3-1b-a400m": 1_334_628_352,
    "gemma4-26b-a4b": 25_233_142_046 - 256 + 5 * 2816 * 2 * 512,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "glm4.5-air": 106_852_251_264,  # without the layer that drafts
}


def test_named_shapes_have_the_published_parameter_counts() -> None:
    real = {name: config for name, config in SHAPES.items() if not name.startswith("tiny-")}
    assert {name: parameter_count(config) for name, config in real.items()} == PUBLISHED


# Billions that the makers call active. Some count the embedding and the head, some the head alone, some neither.
ACTIVE = {
    "mixtral-8x7b": 12.9,
    "qwen1.5-moe-a2.7b": 2.7,
    "qwen3-30b-a3b": 3.3,
    "olmoe-7b": 1.3,
    "granite3-1b-a400m": 0.4,
    "gemma4-26b-a4b": 3.8,
    "gpt-oss-20b": 3.61,
    "gpt-oss-120b": 5.13,
    "glm4.5-air": 12,
}


def test_a_token_takes_the_published_part_of_a_model_with_experts() -> None:
    for name, config in SHAPES.items():
        taken = parameters_per_token(config)
        if not any(config.experts):
            assert taken == parameter_count(config)
        elif not name.startswith("tiny-"):
            assert active_parameters(config) - 0.2e9 <= ACTIVE[name] * 1e9 <= taken + 0.1e9, name


def test_a_token_of_smollm2_takes_23040_bytes_of_kv_cache() -> None:
    assert kv_bytes_per_token(SHAPES["smollm2-135m"], bytes_per_value=2) == 2 * 30 * 3 * 64 * 2 == 23040


def test_a_token_of_smollm2_attends_as_much_as_it_multiplies_at_position_3072() -> None:
    weights = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536
    assert even_position(SHAPES["smollm2-135m"]) == weights / (2 * 576) == 3072
    windows = SHAPES["tiny-gemma3"].windows
    whole = replace(SHAPES["tiny-gemma3"], windows=(None,) * len(windows))
    assert even_position(SHAPES["tiny-gemma3"]) == even_position(whole) * len(windows) / windows.count(None)


def test_tiny_shapes_have_every_trait_that_a_backend_could_miss() -> None:
    tiny = {name: config for name, config in SHAPES.items() if name.startswith("tiny-")}
    assert {config.family for config in tiny.values()} == set(FAMILIES)
    for config in tiny.values():
        assert config.vocab_size > 256 and config.eos_token_ids and config.context_length == 512
    assert SHAPES["tiny-llama"].num_heads > SHAPES["tiny-llama"].num_kv_heads > 1
    assert SHAPES["tiny-llama"].head_dim * SHAPES["tiny-llama"].num_heads != SHAPES["tiny-llama"].hidden_size
    assert SHAPES["tiny-mistral"].windows == (16,) * 4
    assert SHAPES["tiny-gemma3"].windows == (16, None, 16, None)


def test_shapes_survive_json() -> None:
    """What tests write into a config.json is read back the same."""
    assert read_config(json.loads(json.dumps(GEMMA3))) == read_config(GEMMA3)
