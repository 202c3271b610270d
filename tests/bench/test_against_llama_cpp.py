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
    "phi3": {"model_type": "phi3", "num_key_value_heads": 4},
    "phi4-mini, short": PHI4_MINI | {"original_max_position_embeddings": 256},
    "phi4-mini, long": PHI4_MINI | {"original_max_position_embeddings": 64},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 16, "rope_scaling": YARN | {"attention_factor": 1.1}},
    "granite": {"model_type": "granite"} | MULTIPLIERS,
    "granite4": GRANITE4 | MULTIPLIERS,
}
TOKENS = torch.randint(0, 320, (100,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_llama_cpps(tmp_path, monkeypatch, case):
    monkeypatch.setattr(gguf_files, "_kind", lambda name, shape, kind: Type.F32)
    config, path = read_config(SHAPE | CASES[case]), tmp_path / "model.gguf"
    written = create_model(config)
    randomize(written, 1, std=0.08)
    write(path, config, OwnTensors(written), Type.F32)
    read = create_model(read_config(hugging_face_config(GGUFFile(path))))
    load_weights(read, GGUFTensors(GGUFFile(path)))
    ours, theirs = run(read, TOKENS), logits_of(path, TOKENS, 320)
    assert torch.equal(ours, run(written, TOKENS))
    assert (ours - theirs).abs().max() < 2e-5 * ours.abs().max()


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
