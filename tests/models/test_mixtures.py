"""Checkpoints with experts: folders that transformers writes, and tensors that only some layers have."""

from pathlib import Path

import pytest
import torch

from gradus.errors import CheckpointError
from gradus.loading import load_model, open_checkpoint
from gradus.models import SHAPES, create_model, write_config
from gradus.models.weights import plan
from tests.models.conftest import Reference, loaded, run
from tests.models.test_random_parity import RELATIVE, drawn

FOLDERS = ["tiny-mixtral", "tiny-qwen2-moe", "tiny-qwen3-moe", "tiny-olmoe", "tiny-granite-moe", "tiny-gemma4-moe",
           "tiny-gpt-oss", "tiny-glm4-moe"]  # fmt: skip


@pytest.mark.parametrize("shape", FOLDERS)
def test_a_folder_that_transformers_writes_gives_its_logits(shape: str, tmp_path: Path) -> None:
    import transformers

    raw = write_config(SHAPES[shape])
    config = transformers.AutoConfig.for_model(**raw, attn_implementation="eager", experts_implementation="eager")
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(3)
    for name, weight in theirs.named_parameters():
        centre = 1.0 if weight.ndim == 1 and name.endswith(("weight", "scale")) else 0.0
        torch.nn.init.normal_(weight, centre, 0.2 if weight.ndim == 1 else 0.1)
    theirs.save_pretrained(tmp_path)
    ours = load_model(open_checkpoint(str(tmp_path)), dtype=torch.float32, device="cpu")
    assert ours.config == SHAPES[shape]
    tokens = [*range(3, 40)]
    with torch.inference_mode():
        want = theirs(torch.tensor([tokens])).logits[0]
    assert (run(ours, tokens) - want).abs().max() <= RELATIVE * want.abs().max()


def glm4() -> Reference:
    return next(each for each in (drawn("Glm4Moe", number) for number in range(9)) if not all(each.config.experts))


def test_the_layer_that_drafts_tokens_is_not_read() -> None:
    want = glm4()
    behind = want.config.num_layers
    extra = {f"model.layers.{behind}.{name}": torch.zeros(3) for name in ("eh_proj.weight", "mlp.gate.weight")}
    assert want.error(loaded(want.config, want.tensors | extra)) <= RELATIVE * want.logits.abs().max()
    further = {f"model.layers.{behind + 1}.eh_proj.weight": torch.zeros(3)}
    with pytest.raises(CheckpointError, match="has no place"):
        loaded(want.config, want.tensors | further)


def test_a_dense_layer_and_a_shared_mlp_have_names_of_their_own() -> None:
    names = {piece.stored.name for piece in plan(create_model(SHAPES["tiny-qwen2-moe"]))}
    assert "model.layers.1.mlp.down_proj.weight" in names and "model.layers.1.mlp.gate.weight" not in names
    assert "model.layers.0.mlp.shared_expert.down_proj.weight" in names
    assert "model.layers.0.mlp.down_proj.weight" not in names


@pytest.mark.parametrize("missing", ["mlp.experts.1.up_proj.weight", "mlp.gate.e_score_correction_bias"])
def test_a_lost_tensor_of_an_expert_is_named(missing: str) -> None:
    want = glm4()
    name = f"model.layers.1.{missing}"
    lost = {key: value for key, value in want.tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=f"lacks tensor '{name}'"):
        loaded(want.config, lost)


def test_experts_are_stacked_gates_above_features() -> None:
    """Expert e's gates are rows e F on of the first matrix, and its features lie E F rows further on."""
    want = drawn("GptOss", 0)
    layer = loaded(want.config, want.tensors).layers[0]
    experts, stored = want.config.experts[0], want.tensors["model.layers.0.mlp.experts.gate_up_proj"]
    assert experts is not None
    count, width = experts.count, experts.width
    up = layer.experts.up.weight
    for number in range(count):
        gates, features = (up[start : start + width] for start in (number * width, (count + number) * width))
        assert torch.equal(gates, stored[number, :, ::2].T) and torch.equal(features, stored[number, :, 1::2].T)
