"""Tiny checkpoints, written the way that others write them: safetensors as transformers, GGUF as llama.cpp."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from gradus.models import SHAPES, create_model, read_config, write_config
from gradus.models.weights import plan
from tests.loading.gguf_blocks import encode

VOCABULARY = 320  # rows of the embedding; the tokenizer has fewer tokens, as is common
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_GEMMA4 = _COMMON | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "global_head_dim": 32,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"model_type": "llama", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "qwen2": _COMMON | {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": False},
    "qwen3": _COMMON | {"model_type": "qwen3", "rope_theta": 1e6, "tie_word_embeddings": True},
    "gemma3": _COMMON
    | {"model_type": "gemma3_text", "sliding_window": 32, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    "smollm3": _COMMON
    | {"model_type": "smollm3", "num_hidden_layers": 4, "rope_theta": 1e6, "tie_word_embeddings": True},
    "ministral3": _COMMON | {"model_type": "ministral3", "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.25}},
    "phi3": _COMMON
    | {
        "model_type": "phi3",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 64,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.25, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "attention_factor": 1.25,
        },
    },
    "olmo2": _COMMON | {"model_type": "olmo2", "rope_theta": 500000.0},
    "olmo3": _COMMON
    | {
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "rope_theta": 500000.0,
        "sliding_window": 32,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    },
    "granite": _COMMON
    | {
        "model_type": "granite",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.25,
        "attention_multiplier": 0.125,
        "logits_scaling": 8.0,
    },
    "gemma4": _GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4-e": _GEMMA4
    | {
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
}
FAMILIES = tuple(CONFIGS)
ARCHITECTURES = {family: family for family in FAMILIES} | {
    "ministral3": "mistral3",
    "olmo3": "olmo2",
    "gemma4-e": "gemma4",
}
INTERLEAVED = ("llama", "smollm3", "ministral3", "granite")  # what llama.cpp converts by its LlamaModel


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random values under the names and in the shapes that the checkpoint of this configuration has."""
    generator = torch.Generator().manual_seed(seed)
    pieces = plan(create_model(read_config(config)))
    return {
        piece.stored.name: torch.randn(piece.stored.file_shape(piece.shape), generator=generator) for piece in pieces
    }


def backend() -> tokenizers.Tokenizer:
    """A byte-level BPE with three control tokens."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=CONTROLS, initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat, and the hat was on the cat: that is a fact"] * 4, trainer)
    made.add_special_tokens([AddedToken(control, normalized=False, special=True) for control in CONTROLS])
    return made


TOKENS = backend().get_vocab_size()


def write_folder(folder: Path, family: str = "llama", *, shards: int = 1, dtype: torch.dtype = torch.float32) -> Path:
    """A complete checkpoint, as transformers would save it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS.get(family) or write_config(SHAPES[f"tiny-{family}"])
    tensors = {name: value.to(dtype) for name, value in tensors_of(config).items()}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    (folder / "tokenizer.json").write_text(backend().to_str())
    settings = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML}
    write_json(folder / "tokenizer_config.json", settings)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names[shard::shards], file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


# -- GGUF, as llama.cpp's convert_hf_to_gguf.py writes it --------------------------------------------------------------


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    quantize: dict[str, gguf.GGMLQuantizationType] | None = None,
    config: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> Path:
    """quantize: Hugging Face name → type; the others stay float32. config: the family's in CONFIGS, if None. more:
    further metadata, each of the type that its Python type suggests."""
    config = config or CONFIGS[family]
    writer = gguf.GGUFWriter(path, ARCHITECTURES[family])
    _write_metadata(writer, family, config)
    write_bpe_tokenizer(writer)
    for key, value in (more or {}).items():
        add_metadata(writer, key, value)
    if "rope_scaling" in config and family == "phi3":
        for kind in ("long", "short"):
            factors = np.array(config["rope_scaling"][f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    if family.startswith("gemma4"):  # a quarter of the pairs turns
        half = config["global_head_dim"] // 2
        factors = np.array([1.0] * (half // 4) + [1e30] * (half - half // 4), np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    for name, value in tensors_of(config).items():
        stored, values = as_llama_cpp(family, config, name, value)
        kind = (quantize or {}).get(name)
        if kind is None:
            writer.add_tensor(stored, values)
        else:
            writer.add_tensor(stored, encode(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }[type(value)](key, value)


def as_llama_cpp(family: str, config: dict[str, Any], name: str, value: Tensor) -> tuple[str, np.ndarray]:
    """A tensor's name and values after llama.cpp's conversion."""
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[family].upper())
    stored = gguf.get_tensor_name_map(architecture, 4).get_name(name, try_suffixes=(".weight", ".bias"))
    assert stored is not None, name
    values = value.numpy()
    if family in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        # verbatim from its LlamaModel.permute
        values = (
            values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    if family == "gemma3" and name.endswith("norm.weight"):
        values = values + 1
    if family == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        values = values.T
    stored = stored if stored.endswith((".weight", ".bias")) else f"{stored}.weight"
    return stored, np.ascontiguousarray(values)


def _write_metadata(writer: gguf.GGUFWriter, family: str, config: dict[str, Any]) -> None:
    writer.add_block_count(config.get("num_hidden_layers", 2))
    writer.add_context_length(128)
    writer.add_embedding_length(config.get("hidden_size", 64))
    writer.add_head_count(4)
    writer.add_license("apache-2.0")
    if family == "gpt2":
        writer.add_feed_forward_length(256)
        writer.add_layer_norm_eps(1e-5)
        return
    writer.add_layer_norm_rms_eps(1e-5)
    if family.startswith("gemma4"):
        _write_gemma4(writer, config)
        return
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(2)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta", 1e6))
    if family == "gemma3":
        writer.add_sliding_window(32)
    if family in ("ministral3", "olmo3"):
        _write_yarn(writer, config.get("rope_parameters") or config["rope_scaling"])
    if family == "olmo3":
        writer.add_sliding_window(32)
        writer.add_sliding_window_pattern([True, True, True, False])
    if family == "phi3":
        writer.add_rope_dimension_count(int(config["partial_rotary_factor"] * config["head_dim"]))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_sliding_window(0)
        if "rope_scaling" in config:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_attn_factors(config["rope_scaling"]["attention_factor"])
    if family == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def _write_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    shared, local = config.get("num_kv_shared_layers", 0), [kind[0] == "s" for kind in config["layer_types"]]
    width = config["intermediate_size"]
    if config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([width * (1 + (layer >= len(local) - shared)) for layer in range(len(local))])
    else:
        writer.add_feed_forward_length(width)
    if whole := config.get("num_global_key_value_heads"):
        writer.add_head_count_kv([2 if each else whole for each in local])
    else:
        writer.add_head_count_kv(2)
    for suffix, head in (("", config["global_head_dim"]), ("_swa", config["head_dim"])):
        getattr(writer, f"add_key_length{suffix}")(head)
        getattr(writer, f"add_value_length{suffix}")(head)
        getattr(writer, f"add_rope_dimension_count{suffix}")(head)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(local)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _write_yarn(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "llama_4_scaling_beta" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def write_bpe_tokenizer(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> None:
    described = json.loads(backend().to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROLS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
