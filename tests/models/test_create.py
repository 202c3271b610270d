"""Models as objects: their sizes, their noise, and what the engine relies on when it runs them."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradus.models import SHAPES, create_model, parameter_count, randomize, read_config
from tests.models.conftest import NaiveAttention, run

DENSE = ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
SHAPE_NAMES = [*DENSE, "tiny-mixtral", "tiny-qwen2-moe", "tiny-gemma4-moe", "tiny-gpt-oss", "tiny-glm4-moe"]
BIASED = {
    "vocab_size": 257, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, "attention_bias": True, "mlp_bias": True,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_the_counted_parameters_are_the_allocated_ones(shape: str) -> None:
    model = create_model(SHAPES[shape])
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(SHAPES[shape])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("tied", [True, False])
def test_biases_and_untied_heads_are_counted(kind: str, tied: bool) -> None:
    config = read_config(BIASED | {"model_type": kind, "tie_word_embeddings": tied})
    model = create_model(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(config)


def test_configurations_and_shapes_need_no_torch() -> None:
    code = "import sys, gradus.models, gradus.models.shapes as s; s.SHAPES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    import gradus.models

    assert all(getattr(gradus.models, name) is not None for name in gradus.models.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gradus.models.no_such_name


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_random_weights_are_the_seeds_and_no_other(shape: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = create_model(SHAPES[shape])
        randomize(model, seed=seed, std=0.08)
        return list(model.parameters())

    same = [torch.equal(a, b) for a, b in zip(weights(0), weights(0), strict=True)]
    different = [torch.equal(a, b) for a, b in zip(weights(0), weights(1), strict=True)]
    assert all(same) and not any(different)


def test_random_norms_lie_around_one_and_all_else_around_zero() -> None:
    model = create_model(SHAPES["tiny-gpt2"])
    randomize(model, std=0.08)
    for name, parameter in model.named_parameters():
        center = 1.0 if name.endswith("norm.weight") else 0.0
        assert abs(parameter.mean().item() - center) < 0.05, name
        assert 0.05 < parameter.std().item() < 0.12, name


def test_large_matrices_are_drawn_in_pieces_without_repeating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.models.create.CHUNK", 1000)
    model = create_model(SHAPES["tiny-llama"])
    randomize(model)
    rows = model.embedding.weight
    assert rows.unique(dim=0).shape == rows.shape


@pytest.mark.parametrize("shape", DENSE)  # the torch form of experts reads how many rows each has
def test_a_step_never_looks_at_a_value(shape: str) -> None:
    """A CUDA graph can only hold work whose course does not depend on what is in the tensors.

    Fake tensors have shapes and no values: whoever asks for one (.item(), `if x > 0`) fails on them.
    """
    config = SHAPES[shape]
    with FakeTensorMode(), torch.no_grad():
        model = create_model(config)
        ids, positions = torch.empty(7, dtype=torch.long), torch.empty(7, dtype=torch.long)

        class NoAttention:
            def attend(self, layer, q, k, v):
                assert k.shape == v.shape == (7, config.num_kv_heads, config.head_dim)
                return torch.empty_like(q)

        logits = model.logits(model(ids, positions, NoAttention()))
    assert logits.shape == (7, config.vocab_size) and logits.dtype == torch.float32


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_a_step_without_tokens_is_a_step(shape: str) -> None:
    model = create_model(SHAPES[shape])
    randomize(model)
    nothing = torch.empty(0, dtype=torch.long)
    with torch.inference_mode():
        hidden = model.embed(nothing, nothing)
        assert model.logits(hidden).shape == (0, 320)


def test_the_last_position_of_the_context_has_its_angles(tiny_tokens: list[int]) -> None:
    model = create_model(SHAPES["tiny-llama"])
    randomize(model, std=0.08)
    with torch.inference_mode():
        hidden = model(torch.tensor([1]), torch.tensor([511]), NaiveAttention(model.config))
        with pytest.raises(IndexError):
            model(torch.tensor([1]), torch.tensor([512]), NaiveAttention(model.config))
    assert hidden.isfinite().all() and run(model, tiny_tokens).isfinite().all()


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do, views aside: at one row a step each costs more in asking than in doing."""

    VIEWS = ("view", "split", "slice", "select", "unsqueeze", "unbind", "t", "transpose", "detach", "alias", "expand")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        self.count += not any(name == view or name.startswith(view + "_") for view in self.VIEWS)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("shape", "most"),
    [("tiny-gpt2", 9), ("tiny-llama", 22), ("tiny-qwen2", 22), ("tiny-qwen3", 35), ("tiny-gemma3", 46)],
)
def test_a_layer_is_few_operations(shape: str, most: int) -> None:
    class NoAttention:
        def attend(self, layer, q, k, v):
            return q.contiguous()

    model = create_model(SHAPES[shape])
    randomize(model)
    one = torch.tensor([1])
    with torch.no_grad(), Operations() as operations:
        x = model.embed(one, one)
        before = operations.count
        model.run_layers(x, one, NoAttention())
    layers = len(model.layers)
    assert operations.count - before <= layers * most + 8  # and a few for the rotation, once for all layers
