"""llama.cpp reads the files that we write for it, and computes what we compute: its own code is the judge of every key,
name and order of rows. These tests need llama-cpp-python (the extra `llama-cpp`)."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from gradus.bench.contenders import gguf_files
from gradus.bench.contenders.gguf_files import OwnTensors, write
from gradus.bench.contenders.llama_cpp import library
from gradus.loading.gguf.architectures import hugging_face_config
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.gguf.model import GGUFTensors
from gradus.models import create_model, load_weights, randomize, read_config
from tests.models.conftest import run

pytest.importorskip("llama_cpp")

SHAPE = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "rope_theta": 1000.0,
    "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 32}
GROWING = YARN | {"llama_4_scaling_beta": 0.3}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.01 * pair for pair in range(12)],
    "long_factor": [1.0 + 0.5 * pair for pair in range(12)],
}
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125, "logits_scaling": 4.0,
}  # fmt: skip
GRANITE4 = {
    "model_type": "granitemoehybrid",
    "num_local_experts": 0,
    "shared_intermediate_size": 160,
    "layer_types": ["attention"] * 4,
    "position_embedding_type": "rope",
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 96}
GLM4 = EXPERTS | {
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
PHI4_MINI = {"model_type": "phi3", "partial_rotary_factor": 0.75, "rope_scaling": LONG}
CASES = {
    "llama": {"model_type": "llama"},
    "llama with YaRN": {"model_type": "llama", "rope_parameters": YARN},
    "smollm3": {"model_type": "smollm3", "tie_word_embeddings": True},
    "ministral3": {"model_type": "ministral3", "rope_parameters": GROWING | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "ministral3, other bounds": {
        "model_type": "ministral3",
        "rope_parameters": GROWING | {"beta_fast": 8.0, "beta_slow": 2.0},
    },
    "qwen3": {"model_type": "qwen3"},
    "mixtral": LOCAL | {"model_type": "mixtral"},
    "qwen2_moe": EXPERTS | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 160},
    "qwen3_moe": EXPERTS | {"model_type": "qwen3_moe", "norm_topk_prob": True},
    "olmoe": LOCAL | {"model_type": "olmoe", "num_key_value_heads": 4},
    "granitemoe": LOCAL | {"model_type": "granitemoe"} | MULTIPLIERS,
    "granitemoeshared": LOCAL | {"model_type": "granitemoeshared", "shared_intermediate_size": 64} | MULTIPLIERS,
    "gpt_oss": LOCAL
    | {
        "model_type": "gpt_oss",
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "glm4_moe": GLM4,
    "glm4_moe, norms of heads and groups": GLM4
    | {"use_qk_norm": True, "attention_bias": True, "n_group": 4, "topk_group": 2},
    "phi3": {"model_type": "phi3", "num_key_value_heads": 4},
    "phi4-mini, short": PHI4_MINI | {"original_max_position_embeddings": 256},
    "phi4-mini, long": PHI4_MINI | {"original_max_position_embeddings": 64},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 16, "rope_scaling": YARN | {"attention_factor": 1.1}},
    "granite": {"model_type": "granite"} | MULTIPLIERS,
    "granite4": GRANITE4 | MULTIPLIERS,
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "global_head_dim": 64,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
GEMMAS = {
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 32,
    },
    "gemma4": GEMMA4,
    "gemma4, keys as values": GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4, embeddings by layer": GEMMA4
    | {
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 320,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
}
TOKENS = torch.randint(0, 320, (100,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(autouse=True)
def _everything_is_in_float32(monkeypatch):
    monkeypatch.setattr(gguf_files, "_kind", lambda name, shape, kind: Type.F32)


def model_of(case):
    model = create_model(read_config(SHAPE | case))
    randomize(model, 1, std=0.08)
    return model


def difference(written, path):
    """The largest difference between llama.cpp's logits and those of the file read by us, relative to the largest."""
    write(path, written.config, OwnTensors(written), Type.F32)
    read = create_model(read_config(hugging_face_config(GGUFFile(path))))
    load_weights(read, GGUFTensors(GGUFFile(path)))
    ours, theirs = run(read, TOKENS), logits_of(path, TOKENS, 320)
    torch.testing.assert_close(ours, run(written, TOKENS), rtol=0, atol=1e-5)  # Gemma 3: one added, one taken away
    return (ours - theirs).abs().max() / ours.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_llama_cpps(tmp_path, case):
    assert difference(model_of(CASES[case]), tmp_path / "model.gguf") < 2e-5


def test_logits_of_gemmas_experts_are_llama_cpps(tmp_path):
    """The table of GELU would change which experts are chosen: gates here are so large that it is 0 or its
    argument."""
    model = model_of(GEMMA4 | EXPERTS | {"enable_moe_block": True, "top_k_experts": 2})
    with torch.no_grad():
        for layer in model.layers:
            layer.heads.q_norm.weight.mul_(0.15)
            for matrix in (layer.gate_up, layer.experts.up):
                matrix.weight[: len(matrix.weight) // 2] *= 1e4
    assert difference(model, tmp_path / "model.gguf") < 2e-5


@pytest.mark.parametrize("case", GEMMAS)
def test_gemmas_logits_are_llama_cpps_but_for_its_gelu(tmp_path, case):
    """llama.cpp looks GELU up in a table of float16. Without it, the logits are as close as those of the others.

    Queries are kept short here: random ones attend so sharply that any rounding shows.
    """
    model = model_of(GEMMAS[case])
    with torch.no_grad():
        for layer in model.layers:
            layer.heads.q_norm.weight.mul_(0.15)
    assert difference(model, tmp_path / "model.gguf") < 3e-3
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".gate_up." in name:
                weight[: len(weight) // 2] = 0
            if ".embedded.gate." in name:
                weight.zero_()
    assert difference(model, tmp_path / "model.gguf") < 2e-5


def logits_of(path, tokens, vocab_size):
    """Every position's logits, [N, V]: one step, keys and values in float32, and attention as plain as it comes."""
    llama = library()
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers, settings.use_extra_bufts = 0, False
    model = llama.llama_model_load_from_file(str(path).encode(), settings)
    assert model
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = params.flash_attn_type = 0
    context, batch = llama.llama_init_from_model(model, params), llama.llama_batch_init(256, 0, 1)
    for position, token in enumerate(tokens):
        batch.token[position], batch.pos[position], batch.logits[position] = token, position, 1
        batch.n_seq_id[position], batch.seq_id[position][0] = 1, 0
    batch.n_tokens = len(tokens)
    assert llama.llama_decode(context, batch) == 0
    found = np.ctypeslib.as_array(llama.llama_get_logits(context), (len(tokens), vocab_size)).copy()
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return torch.from_numpy(found)
