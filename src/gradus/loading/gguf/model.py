"""A GGUF file as an ordinary checkpoint: its metadata as a Hugging Face configuration, its tensors by their
Hugging Face names, with the changes of llama.cpp's conversion undone.

Three changes matter, and missing any one of them gives fluent nonsense: Llama's q and k rows are interleaved for
another layout of rotary positions, Gemma's norm scales already contain the 1 that the model adds, and GPT-2's matrices
are transposed. Only the first change is llama.cpp's own: the other two turn a tensor into
the form that the model computes with, as the model's table of weights says.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading.gguf.file import PLAIN, GGUFFile, Type
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.quoting import quoted
from gradus.models.create import model_class
from gradus.models.source import Stored, tensors_of

_LLAMA = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}
_QWEN3 = _LLAMA | {
    "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
_GEMMA3 = _QWEN3 | {
    "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
_GPT2 = {
    "token_embd.weight": "wte.weight",
    "position_embd.weight": "wpe.weight",
    "output_norm.weight": "ln_f.weight",
    "output_norm.bias": "ln_f.bias",
    "output.weight": "lm_head.weight",
    "attn_norm": "h.{}.ln_1",
    "attn_qkv": "h.{}.attn.c_attn",
    "attn_output": "h.{}.attn.c_proj",
    "ffn_norm": "h.{}.ln_2",
    "ffn_up": "h.{}.mlp.c_fc",
    "ffn_down": "h.{}.mlp.c_proj",
}

ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's scaling, computed for each frequency


class GGUFTensors:
    """The tensors under their Hugging Face names: a TensorSource."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        family = architecture(file)
        self._architecture = ARCHITECTURES[family]
        tensors = [stored for source in model_class(family).weights.values() for stored in tensors_of(source)]
        self._changes = {stored.name: stored for stored in tensors}
        self._stored = {self._hugging_face_name(stored): stored for stored in file.tensors if stored != ROPE_FACTORS}

    def names(self) -> Iterable[str]:
        return self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._change(name).file_shape(self._file.tensors[self._stored[name]].shape)

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        value = self._in_order(stored, self._file.read(stored))
        return self._change(name).restore(value).contiguous()

    def packing(self, name: str) -> Type | None:
        """A matrix's quantization type; None if it is plain, not a matrix, or stored transposed."""
        entry = self._file.tensors[self._stored[name]]
        as_it_is = type(self._change(name)) is Stored
        return None if entry.type in PLAIN or len(entry.shape) != 2 or not as_it_is else entry.type

    def blocks(self, name: str) -> Tensor:
        """A quantized matrix as stored (see `GGUFFile.blocks`). Its rows are in Hugging Face's order: if the file has
        another, they are a copy."""
        stored = self._stored[name]
        found = self._file.blocks(stored)
        if not self._is_interleaved(stored):
            return found
        found = self._in_order(stored, found)
        self._file.forget(stored)
        return found

    def _in_order(self, stored: str, value: Tensor) -> Tensor:
        return uninterleave(value, self._heads(stored)) if self._is_interleaved(stored) else value

    def _is_interleaved(self, stored: str) -> bool:
        return self._architecture.interleaved and re.search(r"\.attn_[qk]\.", stored) is not None

    def where(self, name: str) -> str:
        return self._file.path.name

    def _hugging_face_name(self, stored: str) -> str:
        names = self._architecture.names
        if stored in names:
            return names[stored]
        block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", stored)
        if block and block[2] in names:
            return f"{names[block[2]].format(int(block[1]))}.{block[3]}"
        return stored  # unknown: assigning the weights will report it under this name

    def _change(self, name: str) -> Stored:
        """The form of this tensor in a Hugging Face checkpoint; llama.cpp stores the form that the model computes
        with."""
        return self._changes.get(re.sub(r"\.\d+\.", ".{}.", name, count=1), Stored(name))

    def _heads(self, stored: str) -> int:
        reader = Metadata(self._file, architecture(self._file))
        heads = reader.integer("attention.head_count")
        heads = heads if ".attn_q." in stored else reader.integer("attention.head_count_kv", heads)
        rows = self._file.tensors[stored].shape[0]
        if rows % (2 * heads):
            raise CheckpointError(
                f"{self._file.path.name}: tensor {quoted(stored)} has {rows} rows, not a multiple of 2 x {heads} heads"
            )
        return heads


def architecture(file: GGUFFile) -> str:
    """The file's architecture, a key of ARCHITECTURES. Raises CheckpointError for any other."""
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path.name}: architecture {quoted(found)} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return found


def hugging_face_config(file: GGUFFile) -> dict[str, Any]:
    """The model's hyperparameters, with the keys of a config.json.

    Raises CheckpointError for metadata that change the model in a way that is not supported.
    """
    read = Metadata(file, architecture(file))
    config = ARCHITECTURES[read.prefix].config(read)
    read.refuse_unread(_usual(config))
    return config | read.special_tokens()


def _usual(config: dict[str, Any]) -> dict[str, float]:
    """The values of further keys that say what the model does anyway."""
    width, theta = config.get("head_dim"), config.get("rope_theta")
    values = {
        "attention.scale": width and width**-0.5,
        "attention.key_length_swa": width,
        "attention.value_length_swa": width,
        "rope.dimension_count_swa": width,
        "attention.head_count_kv": config.get("n_head"),
        "rope.freq_base_swa": theta,
        "rope.global.freq_base": theta,  # Ollama's names
        "rope.local.freq_base": config.get("rope_local_base_freq"),
        "embedding_length_out": config.get("hidden_size", config.get("n_embd")),
    }
    return {key: value for key, value in values.items() if value is not None}


def _gpt2(read: Metadata) -> dict[str, Any]:
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


def _rotary(read: Metadata) -> dict[str, Any]:
    """The keys that all families with rotary positions share."""
    if read.integer("expert_count", 0):
        raise CheckpointError(f"{read.label}: mixtures of experts are not supported")
    hidden, heads = read.integer("embedding_length"), read.integer("attention.head_count")
    head_dim = read.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    turned = read.integer("rope.dimension_count", head_dim)
    if turned != head_dim or read.integer("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(
            f"{read.label}: keys of {head_dim} values with {turned} of them rotated, and values of "
            f"{read.integer('attention.value_length', head_dim)}: only equal widths are supported"
        )
    return {
        "vocab_size": read.rows("token_embd.weight"),
        "hidden_size": hidden,
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": read.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(read, head_dim),
        "tie_word_embeddings": "output.weight" not in read.file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in read.file.tensors,
    }


def _without_windows(read: Metadata) -> dict[str, Any]:
    """The keys of families in which llama.cpp computes no windows. One as long as the context changes nothing."""
    key, context = "attention.sliding_window", read.integer("context_length")
    if 0 < (window := read.integer(key, 0)) < context:
        read.refuse(key, f"= {window} is shorter than the context of {context}, and is not supported")
    return _rotary(read)


def _llama(read: Metadata) -> dict[str, Any]:
    return _without_windows(read) | {"model_type": "llama", "mlp_bias": "blk.0.ffn_gate.bias" in read.file.tensors}


def _qwen2(read: Metadata) -> dict[str, Any]:
    return _without_windows(read) | {"model_type": "qwen2"}


def _qwen3(read: Metadata) -> dict[str, Any]:
    return _without_windows(read) | {"model_type": "qwen3"}


def _gemma3(read: Metadata) -> dict[str, Any]:
    config = _rotary(read)
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
    width = ARCHITECTURES["gemma3"].score_width(*(config[name] for name in sizes))
    return config | {
        "model_type": "gemma3_text",
        "rope_theta": read.number("rope.freq_base", 1e6),
        "rope_local_base_freq": read.number("rope.freq_base_swa", 1e4),
        "sliding_window": read.integer("attention.sliding_window"),
        "query_pre_attn_scalar": width,
        "attn_logit_softcapping": read.number("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": read.number("final_logit_softcapping", 0.0) or None,
        **_window_layers(read),
    }


def _window_layers(read: Metadata) -> dict[str, Any]:
    """Which layers have the window: all but every n-th one, or as a list says."""
    key = "attention.sliding_window_pattern"
    pattern = read.get(key, 6)
    if not isinstance(pattern, list):
        return {"sliding_window_pattern": read.integer(key, 6)}
    if len(pattern) != read.integer("block_count") or not all(isinstance(item, int) for item in pattern):
        read.refuse(key, f"must say it of each layer, got {quoted(pattern)}")
    return {"layer_types": ["sliding_attention" if item else "full_attention" for item in pattern]}


@dataclass(frozen=True)
class Architecture:
    """A family in llama.cpp.

    names: llama.cpp's tensor names → Hugging Face's. config: makes a config.json from the metadata. interleaved: q and
    k rows are laid out for the other kind of rotation. free_width: heads may have any width, not only the hidden size
    divided by the number of heads. windows: llama.cpp computes windows. by_width: the number of layers of the one model
    size that scales scores differently.
    """

    names: Mapping[str, str]
    config: Callable[[Metadata], dict[str, Any]]
    interleaved: bool = False
    free_width: bool = True
    windows: bool = False
    by_width: int | None = None

    def score_width(self, layers: int, hidden: int, heads: int, head_dim: int) -> int:
        """Return the number whose power of -0.5 scales the scores."""
        return hidden // heads if layers == self.by_width else head_dim


ARCHITECTURES = {
    "llama": Architecture(_LLAMA, _llama, interleaved=True),
    "qwen2": Architecture(_LLAMA, _qwen2, free_width=False),
    "qwen3": Architecture(_QWEN3, _qwen3),
    "gemma3": Architecture(_GEMMA3, _gemma3, windows=True, by_width=62),
    "gpt2": Architecture(_GPT2, _gpt2),
}
"""Architectures by llama.cpp's names, which are the same as our families' names."""


def _rope_scaling(read: Metadata, head_dim: int) -> dict[str, Any] | None:
    """Read how positions are scaled. As in llama.cpp, a factor without a type is linear, and had another name once."""
    kind = read.get("rope.scaling.type", "linear")
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 0.0))
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{read.label}: rope scaling {quoted(kind)} is not supported; supported are none and linear"
        )
    linear = kind == "linear" and factor not in (0.0, 1.0)
    if ROPE_FACTORS not in read.file.tensors:
        return {"rope_type": "linear", "factor": factor} if linear else None
    if linear:
        read.refuse("rope.scaling", f"= {factor} and tensor {ROPE_FACTORS!r} scale positions twice: not supported")
    return _llama3_scaling(read, head_dim)


def _llama3_scaling(read: Metadata, head_dim: int) -> dict[str, Any]:
    """Recover Llama 3's parameters from the stored factors, assuming the constants that all Llama 3 models share.

    The factor of the slowest rotation is `factor` itself; the others must equal the file's.
    """
    from gradus.models.config import Llama3Scaling, Rope
    from gradus.models.rope import frequencies

    factors = read.file.read(ROPE_FACTORS).float()
    theta, factor = read.number("rope.freq_base", 10000.0), factors.max().item()
    known = factors.shape == (head_dim // 2,) and 1.0 <= factor < 1e6
    if known:
        scaled = frequencies(Rope(theta, Llama3Scaling(factor, 1.0, 4.0, 8192)), head_dim)
        known = torch.allclose(frequencies(Rope(theta), head_dim) / scaled, factors, rtol=1e-3)
    if not known:
        raise CheckpointError(f"{read.label}: tensor {ROPE_FACTORS!r} does not hold the factors of Llama 3's scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def uninterleave(value: Tensor, heads: int) -> Tensor:
    """Reorder a head's rows to 0, 2, 4, …, 1, 3, 5, …: rotary partners move from adjacent rows to half a head apart."""
    return value.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(value.shape)
