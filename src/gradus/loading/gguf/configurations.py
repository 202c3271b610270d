"""A GGUF file's metadata as a Hugging Face configuration, one function per architecture of llama.cpp.

A key that the function of its architecture does not ask for, and that would change the model, is refused by name
(metadata.py).
"""

from typing import Any

from gradus.errors import CheckpointError
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.gguf.rotary import FACTORS, original_context
from gradus.loading.gguf.sizes import layer_types, refuse_experts, rotary, sizes, without_windows
from gradus.models.config import ModelConfig

GEMMA3_BY_STREAM = 62  # layers of the one Gemma 3 that scales its scores by the width of its stream
LONGEST_ROTATION = 1e20  # a factor from which on a pair of values rests: llama.cpp writes 1e30


def gpt2(read: Metadata) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": read.rows("token_embd.weight"),
        "n_embd": read.integer("embedding_length"),
        "n_inner": read.integer("feed_forward_length"),
        "n_layer": read.integer("block_count"),
        "n_head": read.integer("attention.head_count"),
        "n_positions": read.rows("position_embd.weight"),
        "layer_norm_epsilon": read.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": "output.weight" not in read.file.tensors,
    }


def llama(read: Metadata) -> dict[str, Any]:
    return without_windows(read) | {"model_type": "llama", "mlp_bias": "blk.0.ffn_gate.bias" in read.file.tensors}


def qwen2(read: Metadata) -> dict[str, Any]:
    return without_windows(read) | {"model_type": "qwen2"}


def qwen3(read: Metadata) -> dict[str, Any]:
    return without_windows(read) | {"model_type": "qwen3"}


def smollm3(read: Metadata) -> dict[str, Any]:
    """Every fourth layer does without rotation, and no key says so."""
    return llama(read) | {"model_type": "smollm3", "no_rope_layer_interval": 4}


def mistral3(read: Metadata) -> dict[str, Any]:
    """Mistral Small 3, or Ministral 3, whose queries grow with their position."""
    config = without_windows(read)
    parameters = {"rope_type": "default", "rope_theta": config["rope_theta"]} | (config.pop("rope_scaling") or {})
    if beta := read.number("attention.temperature_scale", 0.0):
        original = original_context(read)
        if read.integer("attention.temperature_length", original) != original:
            read.refuse("attention.temperature_length", f"other than the trained context, {original}, is not supported")
        parameters |= {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    return config | {"model_type": "ministral3", "rope_parameters": parameters}


def phi3(read: Metadata) -> dict[str, Any]:
    """Heads may turn in part. The window is the model's, although llama.cpp computes none."""
    config = rotary(read, partial=True)
    window = read.integer("attention.sliding_window", 0)
    return config | {
        "model_type": "phi3",
        "sliding_window": window or None,
        "original_max_position_embeddings": original_context(read),
        "partial_rotary_factor": read.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"],
    }


def olmo2(read: Metadata) -> dict[str, Any]:
    """OLMo 2, or with windows OLMo 3, where the layers with a window turn at the plain frequencies."""
    config = rotary(read)
    window = read.integer("attention.sliding_window", 0)
    if not window:
        return config | {"model_type": "olmo2"}
    theta = config["rope_theta"]
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": theta} | (config.pop("rope_scaling") or {}),
        "sliding_attention": {"rope_type": "default", "rope_theta": read.number("rope.freq_base_swa", theta)},
    }
    return config | {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": layer_types(read, 4),
        "rope_parameters": ropes,
    }


def granite(read: Metadata) -> dict[str, Any]:
    """Granite 3, and the dense models of Granite 4, which llama.cpp writes as Granite 3 with keys of parts that these
    models lack. The scale of scores is a number of its own; the others are 1 where absent or 0, as in llama.cpp."""
    if any(".ssm_" in name for name in read.file.tensors):
        raise CheckpointError(f"{read.label}: layers with a state are not supported: every layer must attend")
    refuse_experts(read)
    config = multiplied(read)
    read.disregard(r"ssm\..*|expert_.*")
    return config | {
        "model_type": "granite",
        "mlp_bias": "blk.0.ffn_gate.bias" in read.file.tensors,
    }


def multiplied(read: Metadata) -> dict[str, Any]:
    """The keys of all Granite models."""
    config = without_windows(read)
    if read.get("rope.scaling.finetuned", True) is not True:  # a switch of the rotation, in this architecture
        read.refuse("rope.scaling.finetuned", "= False leaves out rotary positions, and is not supported")
    return config | {
        "attention_multiplier": read.number("attention.scale", 0.0) or config["head_dim"] ** -0.5,
        "embedding_multiplier": read.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": read.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": read.number("logit_scale"),
    }


def gemma3(read: Metadata) -> dict[str, Any]:
    """No key says how scores are scaled: llama.cpp recognizes the largest model, the exception, by its depth."""
    config = rotary(read)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    by_stream = config["num_hidden_layers"] == GEMMA3_BY_STREAM
    return config | {
        "model_type": "gemma3_text",
        "rope_theta": read.number("rope.freq_base", 1e6),
        "rope_local_base_freq": read.number("rope.freq_base_swa", 1e4),
        "sliding_window": read.integer("attention.sliding_window"),
        "query_pre_attn_scalar": hidden // heads if by_stream else config["head_dim"],
        "attn_logit_softcapping": read.number("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": read.number("final_logit_softcapping", 0.0) or None,
        "layer_types": layer_types(read, 6),
    }


def gemma3_scale(config: ModelConfig) -> float:
    """Return llama.cpp's factor of Gemma 3's scores."""
    by_stream = config.num_layers == GEMMA3_BY_STREAM
    return float((config.hidden_size // config.num_heads if by_stream else config.head_dim) ** -0.5)


def gemma4(read: Metadata) -> dict[str, Any]:
    """Two kinds of layers, each with its own heads. Keys that end in `_swa` describe layers with a window."""
    if read.number("attention.scale", 1.0) != 1.0:  # norms keep queries and keys short
        read.refuse("attention.scale", "other than 1 is not supported")
    kinds = layer_types(read, None)
    whole = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    wide, narrow = _gemma4_head(read, ""), _gemma4_head(read, "_swa")
    shared, kv_heads = read.integer("attention.shared_kv_layers", 0), read.each("attention.head_count_kv", len(kinds))
    values = [f"blk.{layer}.attn_v.weight" in read.file.tensors for layer in whole if layer < len(kinds) - shared]
    embedded = read.integer("embedding_length_per_layer_input", 0)
    return (
        sizes(read)
        | _gemma4_widths(read, len(kinds), shared)
        | {
            "model_type": "gemma4_text",
            "head_dim": narrow,
            "num_key_value_heads": kv_heads[0],
            "per_layer_config": {
                str(layer): {"head_dim": wide if layer in whole else narrow, "num_key_value_heads": heads}
                for layer, heads in enumerate(kv_heads)
            },
            "attention_k_eq_v": bool(values) and not any(values),
            "num_kv_shared_layers": shared,
            "hidden_size_per_layer_input": embedded,
            "vocab_size_per_layer_input": read.rows("per_layer_token_embd.weight" if embedded else "token_embd.weight"),
            "sliding_window": read.integer("attention.sliding_window"),
            "layer_types": kinds,
            "final_logit_softcapping": read.number("final_logit_softcapping", 0.0) or None,
            "rope_parameters": {
                "full_attention": _gemma4_rope(read, wide),
                "sliding_attention": {"rope_type": "default", "rope_theta": read.number("rope.freq_base_swa", 1e4)},
            },
        }
    )


def _gemma4_head(read: Metadata, kind: str) -> int:
    """Read the size of a head. Keys, values and the part that turns must have the same."""
    width = read.integer(f"attention.key_length{kind}")
    if width < 1:
        read.refuse(f"attention.key_length{kind}", f"must be at least 1, got {width}")
    for key in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
        if read.integer(key, width) != width:
            read.refuse(key, f"other than the keys' length, {width}, is not supported")
    return width


def _gemma4_rope(read: Metadata, head_dim: int) -> dict[str, Any]:
    """The first pairs turn, at the frequencies of the whole head, and the others rest: their factors are huge."""
    factors = read.file.read(FACTORS).flatten() if FACTORS in read.file.tensors else None
    turned = head_dim // 2 if factors is None else int((factors < LONGEST_ROTATION).sum())
    if factors is not None and not (len(factors) == head_dim // 2 and (factors[:turned] == 1).all() and turned):
        raise CheckpointError(f"{read.label}: tensor {FACTORS!r} does not hold the factors of Gemma 4's rotation")
    return {
        "rope_type": "proportional",
        "rope_theta": read.number("rope.freq_base", 1e6),
        "partial_rotary_factor": 2 * turned / head_dim,
    }


def _gemma4_widths(read: Metadata, layers: int, shared: int) -> dict[str, Any]:
    """The layers that share keys and values may have twice the features."""
    widths = read.each("feed_forward_length", layers)
    narrow, wide = set(widths[: layers - shared]), set(widths[layers - shared :])
    if len(narrow) != 1 or len(wide) > 1 or wide > {*narrow, 2 * min(narrow)}:
        read.refuse("feed_forward_length", f"must be the same in all layers, or twice in shared ones, got {widths}")
    return {"intermediate_size": min(narrow), "use_double_wide_mlp": bool(wide) and wide != narrow}


# -- parts that architectures share ------------------------------------------------------------------------------------
