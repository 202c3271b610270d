"""Run by test_experts.py in a process of its own, where Triton interprets: models with experts on all their kernels."""

import pytest
import torch

from gradus.attention.triton_paged import TritonPagedAttention
from gradus.kernels.fuse.experts import FusedMixture
from gradus.kernels.fuse.model import fused
from tests.kernels.interpreted_fused_model import answers, small
from tests.pairwise import first

SHAPES = ["tiny-gpt-oss", "tiny-gemma4-moe", "tiny-qwen3-moe", "tiny-qwen2-moe", "tiny-glm4-moe", "tiny-granite-moe"]


@pytest.mark.parametrize("shape", first(SHAPES, count=2))
@torch.inference_mode()
def test_a_fused_model_gives_the_models_tokens(shape):
    model = small(shape)
    seen = fused(model)
    assert [type(layer.experts) is FusedMixture for layer in seen.layers] == [
        layer.experts is not None for layer in model.layers
    ]
    assert answers(seen, TritonPagedAttention) == answers(model)
