"""The metadata that most architectures of llama.cpp share: sizes, heads, and which layers have a window."""

from typing import Any

from gradus.errors import CheckpointError
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.gguf.rotary import rope_scaling
from gradus.loading.quoting import quoted


def refuse_experts(read: Metadata) -> None:
    if read.integer("expert_count", 0):
        raise CheckpointError(f"{read.label}: mixtures of experts are not supported in architecture {read.prefix}")


def sizes(read: Metadata) -> dict[str, Any]:
    return {
        "vocab_size": read.rows("token_embd.weight"),
        "hidden_size": read.integer("embedding_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": read.integer("attention.head_count"),
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in read.file.tensors,
    }


def rotary(read: Metadata, partial: bool = False) -> dict[str, Any]:
    """The keys that most families with rotary positions share. partial: whether heads may turn in part."""
    found = sizes(read)
    hidden, heads = found["hidden_size"], found["num_attention_heads"]
    head_dim = read.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    _check_head(read, heads, head_dim)
    turned, values = read.integer("rope.dimension_count", head_dim), read.integer("attention.value_length", head_dim)
    if (turned != head_dim and not partial) or values != head_dim:
        raise CheckpointError(
            f"{read.label}: keys of {head_dim} values with {turned} of them rotated, and values of "
            f"{values}: only equal widths are supported"
        )
    return found | {
        "intermediate_size": read.integer("feed_forward_length"),
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_theta": read.number("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(read, turned),
        "attention_bias": "blk.0.attn_q.bias" in read.file.tensors,
    }


def _check_head(read: Metadata, heads: int, head_dim: int) -> None:
    """Refuse sizes that cannot be computed with."""
    if heads < 1:
        read.refuse("attention.head_count", f"must be at least 1, got {heads}")
    if head_dim < 1:
        read.refuse("attention.key_length", f"must be at least 1, got {head_dim}")


def without_windows(read: Metadata) -> dict[str, Any]:
    """The keys of families in which llama.cpp computes no windows. One as long as the context changes nothing."""
    key, context = "attention.sliding_window", read.integer("context_length")
    if 0 < (window := read.integer(key, 0)) < context:
        read.refuse(key, f"= {window} is shorter than the context of {context}, and is not supported")
    return rotary(read)


def layer_types(read: Metadata, period: int | None) -> list[str]:
    """Which layers have the window: all but every n-th one, or as a list says. period: n where no key says it."""
    key, layers = "attention.sliding_window_pattern", read.layers()
    pattern = read.get(key, period)
    if not isinstance(pattern, list):
        period = read.integer(key, period)
        pattern = [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]
    if len(pattern) != layers or not all(isinstance(item, int) for item in pattern):
        read.refuse(key, f"must say it of each layer, got {quoted(pattern)}")
    return ["sliding_attention" if item else "full_attention" for item in pattern]
