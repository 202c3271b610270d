"""The real checkpoints: what their tensors must look like. That they speak is tested with the engine."""

import pytest
import torch

from gradus.loading import load_model, open_checkpoint
from gradus.models import parameter_count

SIZES = {
    "smollm2-135m": 134_515_008,
    "gemma3-270m": 268_098_176,
    "qwen2.5-coder-0.5b": 630_167_424,  # these two files hold the tied head a second time, in another width
    "qwen2.5-coder-1.5b": 1_777_088_000,
    "stories15m": 15_191_712,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.weights(name)) for name in SIZES])
def test_real_weights_are_complete_and_of_a_plausible_size(name):
    checkpoint = open_checkpoint(name)
    tensors = checkpoint.tensors
    assert parameter_count(checkpoint.config) == SIZES[name]
    assert sum(torch.Size(tensors.shape(tensor)).numel() for tensor in tensors.names()) == SIZES[name]
    last = checkpoint.config.num_layers - 1
    for tensor in ("model.layers.0.self_attn.q_proj.weight", f"model.layers.{min(9, last)}.mlp.down_proj.weight"):
        value = tensors.read(tensor)
        assert value.shape == tensors.shape(tensor) and value.isfinite().all()
        assert abs(value.mean()) < 0.01 and 0.01 < value.std() < 0.3


@pytest.mark.weights("gemma3-270m")
def test_gemma_norms_are_stored_as_their_distance_from_one():
    """The file has w + 1 for llama.cpp, Hugging Face has w; a bfloat16 original can be told from its rounding."""
    tensors = open_checkpoint("gemma3-270m").tensors
    value = tensors.read("model.layers.0.input_layernorm.weight")
    assert torch.allclose(value, value.bfloat16().float(), atol=2e-6)
    assert value.min() > -1.0


@pytest.mark.weights
def test_the_default_model_loads_in_bfloat16():
    model = load_model(open_checkpoint("smollm2-135m"), dtype=torch.bfloat16, device="cpu")
    assert {value.dtype for name, value in model.state_dict().items()} <= {torch.bfloat16, torch.float32}
    assert all(value.isfinite().all() for value in model.state_dict().values())
