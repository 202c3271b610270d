"""Random configurations of the families that arrived in 2026, in transformers' own keys: tiny, and with odd corners.

Each draw varies sizes, biases, ties and windows, the family's own traits, and the kind of rotary scaling. The length
that a scaled model was trained with is below the length of the compared text, so every scaling shows.
"""

from collections.abc import Callable
from random import Random
from typing import Any

Settings = dict[str, Any]

LENGTH = 40  # tokens of the compared text
TRAINED = 24  # tokens that a model saw before its rotations were scaled


def sizes(draw: Random) -> Settings:
    heads, kv_heads = draw.choice([(4, 2), (4, 1), (3, 3), (6, 2), (8, 1), (6, 3)])
    return {
        "vocab_size": draw.randrange(257, 340),
        "hidden_size": heads * draw.choice([8, 10, 12, 16]),
        "intermediate_size": draw.choice([52, 84, 97]),
        "num_hidden_layers": draw.randrange(2, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 96,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-2]),
        "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


# -- rotary scaling ----------------------------------------------------------------------------------------------------


def theta(draw: Random) -> Settings:
    return {"rope_theta": draw.choice([100.0, 500.0, 10_000.0])}


def plain(draw: Random) -> Settings:
    return {"rope_type": "default", **theta(draw)}


def linear(draw: Random) -> Settings:
    return {"rope_type": "linear", "factor": draw.choice([2.0, 3.5]), **theta(draw)}


def llama3(draw: Random) -> Settings:
    return {
        "rope_type": "llama3",
        "factor": draw.choice([4.0, 8.0]),
        "low_freq_factor": 1.0,
        "high_freq_factor": draw.choice([2.0, 4.0]),
        "original_max_position_embeddings": TRAINED,
        **theta(draw),
    }


def yarn(draw: Random) -> Settings:
    amplitude = draw.choice(
        [{}, {"attention_factor": 0.7}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7, "mscale_all_dim": 1.5}]
    )
    turns = draw.choice([{}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"beta_fast": 4.0, "beta_slow": 0.5}])
    whole = draw.choice([{}, {"truncate": False}, {"truncate": True}])
    length = {"factor": draw.choice([2.0, 4.0]), "original_max_position_embeddings": TRAINED}
    return {"rope_type": "yarn", **length, **amplitude, **turns, **whole, **theta(draw)}


def longrope(draw: Random, pairs: int) -> Settings:
    """Trained with TRAINED tokens, so that the factors for long texts count; or with all, so that the short ones do."""
    factors = {name: [draw.uniform(1, 6) for _ in range(pairs)] for name in ("short_factor", "long_factor")}
    amplitude = draw.choice([{}, {"attention_factor": 1.3}])
    return {"rope_type": "longrope", **factors, **amplitude, **theta(draw)}


SCALINGS: list[Callable[[Random], Settings]] = [plain, linear, llama3, yarn, yarn]


def scaled(draw: Random) -> Settings:
    return {"rope_parameters": draw.choice(SCALINGS)(draw)}


# -- families ----------------------------------------------------------------------------------------------------------


def smollm3(draw: Random) -> Settings:
    """Layers that do not turn, by a list or by an interval; some of them look a window back."""
    drawn = sizes(draw)
    layers = drawn["num_hidden_layers"]
    still = draw.choice(
        [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [draw.randrange(2) for _ in range(layers)]}]
    )
    windows = draw.choice([{}, {"use_sliding_window": True, "sliding_window": draw.choice([1, 7, 16])}])
    biases = {"attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}
    return drawn | scaled(draw) | still | windows | biases


def ministral3(draw: Random) -> Settings:
    """Queries that grow with their position; YaRN as published, or with other amplitudes."""
    growth = {"llama_4_scaling_beta": draw.choice([0.1, 0.5])}
    window = {"sliding_window": draw.choice([None, None, 9])}
    rope = yarn(draw) | growth
    return sizes(draw) | {"head_dim": draw.choice([8, 12, 22])} | {"rope_parameters": rope} | window


def mistral(draw: Random) -> Settings:
    """Mistral Small 3: wide heads, no window."""
    return sizes(draw) | {"head_dim": draw.choice([8, 12, 22]), "sliding_window": None} | scaled(draw)


def phi3(draw: Random) -> Settings:
    """Heads that turn in part, and LongRoPE."""
    drawn = sizes(draw)
    width = drawn["hidden_size"] // drawn["num_attention_heads"]
    turned = draw.choice(range(2, width + 1, 2))
    parts = {"partial_rotary_factor": turned / width}
    rope = draw.choice([plain, lambda draw: longrope(draw, turned // 2)])(draw)
    trained = {"original_max_position_embeddings": draw.choice([TRAINED, drawn["max_position_embeddings"]])}
    window = {"sliding_window": draw.choice([None, 11])}
    return drawn | {"rope_parameters": rope | parts} | trained | window


def olmo2(draw: Random) -> Settings:
    return sizes(draw) | scaled(draw) | {"attention_bias": draw.random() < 0.3}


def olmo3(draw: Random) -> Settings:
    """Three of four layers look a window back; only those that see everything have scaled rotations."""
    drawn = sizes(draw)
    kinds = ["sliding_attention", "full_attention"]
    types = draw.choice([{}, {"layer_types": [draw.choice(kinds) for _ in range(drawn["num_hidden_layers"])]}])
    whole = draw.choice(SCALINGS)(draw)
    whole.pop("truncate", None)  # transformers looks for it where it is not, if ropes are nested
    ropes = {"full_attention": whole, "sliding_attention": plain(draw)}
    window = {"sliding_window": draw.choice([1, 5, 16])}
    return drawn | {"rope_parameters": ropes, "attention_bias": draw.random() < 0.3} | types | window


def granite(draw: Random) -> Settings:
    multipliers = {
        "embedding_multiplier": draw.choice([1.0, 3.0, 12.0]),
        "residual_multiplier": draw.choice([1.0, 0.22, 0.6]),
        "attention_multiplier": draw.choice([0.0625, 0.3]),
        "logits_scaling": draw.choice([1.0, 4.0, 0.5]),
    }
    biases = {"attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}
    return sizes(draw) | scaled(draw) | multipliers | biases


def granite4(draw: Random) -> Settings:
    """Granite 4, dense or with experts. Its type also has layers with a state; most models do not turn."""
    drawn = granite(draw)
    del drawn["mlp_bias"]
    dense = {"num_local_experts": 0, "num_experts_per_tok": 0}
    layers = {"layer_types": ["full_attention"] * drawn["num_hidden_layers"], "mamba_n_heads": 2}
    width = {"shared_intermediate_size": drawn.pop("intermediate_size")}
    turning = {"position_embedding_type": draw.choice([None, None, "rope"])}
    experts = draw.choice([dense, chosen(draw, "num_local_experts", "intermediate_size")])
    return drawn | layers | width | turning | experts


# -- families with experts ---------------------------------------------------------------------------------------------


def chosen(draw: Random, count: str = "num_experts", width: str = "moe_intermediate_size") -> Settings:
    experts = draw.choice([4, 5, 8])
    return {count: experts, width: draw.choice([20, 33, 52]), "num_experts_per_tok": draw.randrange(1, 4)}


def mixtral(draw: Random) -> Settings:
    own = {"sliding_window": draw.choice([None, None, 9]), "head_dim": draw.choice([8, 12, 22])}
    return sizes(draw) | chosen(draw, "num_local_experts", "intermediate_size") | own | scaled(draw)


def olmoe(draw: Random) -> Settings:
    own = {"norm_topk_prob": draw.random() < 0.5, "attention_bias": draw.random() < 0.3}
    return sizes(draw) | chosen(draw, width="intermediate_size") | own | scaled(draw)


def qwen2_moe(draw: Random) -> Settings:
    """Layers that are dense by a list or by a step, and an MLP that all tokens share."""
    drawn = sizes(draw) | chosen(draw)
    dense = draw.choice([{}, {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
    windows = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": draw.choice([2, 28])}
    own = {"norm_topk_prob": draw.random() < 0.5, "qkv_bias": draw.random() < 0.7}
    shared = {"shared_expert_intermediate_size": draw.choice([24, 52])}
    return drawn | dense | draw.choice([{}, windows]) | own | shared | scaled(draw)


def qwen3_moe(draw: Random) -> Settings:
    drawn = sizes(draw) | chosen(draw)
    dense = draw.choice([{}, {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
    window = draw.choice([{}, {"use_sliding_window": True, "sliding_window": 7}])
    own = {"norm_topk_prob": draw.random() < 0.5, "attention_bias": draw.random() < 0.3}
    return drawn | dense | window | own | {"head_dim": draw.choice([8, 12, 22])} | scaled(draw)


def granite_moe(draw: Random) -> Settings:
    drawn = granite(draw)
    del drawn["mlp_bias"]
    return drawn | chosen(draw, "num_local_experts", "intermediate_size")


def granite_moe_shared(draw: Random) -> Settings:
    return granite_moe(draw) | {"shared_intermediate_size": draw.choice([0, 24, 52])}


def gpt_oss(draw: Random) -> Settings:
    """Sinks, windows, biases, and a gate whose limits some values reach."""
    drawn = sizes(draw) | chosen(draw, "num_local_experts", "intermediate_size")
    kinds = ["sliding_attention", "full_attention"]
    types = draw.choice([{}, {"layer_types": [draw.choice(kinds) for _ in range(drawn["num_hidden_layers"])]}])
    rope = draw.choice([{}, {"rope_parameters": yarn(draw)}])
    own = {"sliding_window": draw.choice([1, 5, 16]), "attention_bias": draw.random() < 0.7}
    return drawn | types | rope | own | {"head_dim": draw.choice([8, 12, 22])}


def glm4_moe(draw: Random) -> Settings:
    """Groups of experts, dense first layers, heads that turn in part."""
    drawn = sizes(draw) | chosen(draw, "n_routed_experts")
    groups = draw.choice([1, 2, 4])
    drawn |= {"n_routed_experts": groups * draw.choice([2, 3]), "n_group": groups}
    least = -(-drawn["num_experts_per_tok"] // (drawn["n_routed_experts"] // groups))
    drawn["topk_group"] = draw.randrange(min(least, groups), groups + 1)
    drawn["num_experts_per_tok"] = min(drawn["num_experts_per_tok"], drawn["n_routed_experts"])
    own = {
        "first_k_dense_replace": draw.randrange(2),
        "n_shared_experts": draw.choice([1, 2]),
        "routed_scaling_factor": draw.choice([1.0, 2.5]),
        "norm_topk_prob": draw.random() < 0.7,
        "use_qk_norm": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5,
        "head_dim": draw.choice([8, 16, 24]),
    }
    rope = draw.choice(SCALINGS)(draw) | {"partial_rotary_factor": draw.choice([0.25, 0.5, 1.0])}
    return drawn | own | {"rope_parameters": rope}


RANDOM: dict[str, Callable[[Random], Settings]] = {
    "SmolLM3": smollm3,
    "Ministral3": ministral3,
    "Mistral": mistral,
    "Phi3": phi3,
    "Olmo2": olmo2,
    "Olmo3": olmo3,
    "Granite": granite,
    "GraniteMoeHybrid": granite4,
    "Mixtral": mixtral,
    "Olmoe": olmoe,
    "Qwen2Moe": qwen2_moe,
    "Qwen3Moe": qwen3_moe,
    "GraniteMoe": granite_moe,
    "GraniteMoeShared": granite_moe_shared,
    "GptOss": gpt_oss,
    "Glm4Moe": glm4_moe,
}
"""By the prefix of the names of transformers' classes."""
