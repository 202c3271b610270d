"""Whatever a family's configuration says, our model computes what transformers computes: logits, and so tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch

from gradus.models import ModelConfig, create_model, parameter_count, read_config, write_config
from gradus.models.layers import Clamped
from tests.models.conftest import Reference, loaded, reference, run
from tests.models.random_configs import RANDOM
from tests.pairwise import first

RELATIVE = 1e-4  # of the largest logit
NOTICEABLE = 1e-2
FEW, MANY = 6, 20  # configurations of each family: in every run, and in all


@cache
def drawn(kind: str, number: int) -> Reference:
    return reference(kind, **RANDOM[kind](Random(f"{kind} {number}")))


@pytest.mark.parametrize("number", first(range(MANY), FEW))
@pytest.mark.parametrize("kind", RANDOM)
def test_a_random_configuration_gives_the_logits_of_transformers(kind: str, number: int) -> None:
    want = drawn(kind, number)
    found = run(loaded(want.config, want.tensors), want.tokens)
    assert want.logits.std() > 0.1, "weights too small for the comparison to mean anything"
    assert (found - want.logits).abs().max() <= RELATIVE * want.logits.abs().max()
    assert found.argmax(-1).tolist() == want.logits.argmax(-1).tolist()
    assert read_config(write_config(want.config)) == want.config
    assert sum(each.numel() for each in create_model(want.config).parameters()) == parameter_count(want.config)


def all_layers_turn(config: ModelConfig) -> ModelConfig:
    rope = next((rope for rope in config.ropes if rope is not None), None)
    return replace(config, ropes=(rope,) * config.num_layers)


def queries_do_not_grow(config: ModelConfig) -> ModelConfig:
    return replace(config, ropes=tuple(rope and replace(rope, growth=None) for rope in config.ropes))


def whole_heads_turn(config: ModelConfig) -> ModelConfig:
    return replace(config, ropes=tuple(rope and replace(rope, turned=None, scaling=None) for rope in config.ropes))


def choosing(**changes: object) -> Callable[[ModelConfig], ModelConfig]:
    """Experts that are chosen or weighed in another way."""

    def changed(config: ModelConfig) -> ModelConfig:
        return replace(config, experts=tuple(each and replace(each, **changes) for each in config.experts))

    return changed


WITHOUT: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "layers that do not turn": ("SmolLM3", all_layers_turn),
    "growing queries": ("Ministral3", queries_do_not_grow),
    "a part of each head that rests": ("Phi3", whole_heads_turn),
    "OLMo's windows": ("Olmo3", lambda config: replace(config, windows=(None,) * config.num_layers)),
    "Granite's multiplier of the stream": ("Granite", lambda config: replace(config, residual_scale=1.0)),
    "Granite's multiplier of the logits": ("Granite", lambda config: replace(config, logit_scale=1.0)),
    "weights of experts that add up to one": ("Mixtral", choosing(normalized=False)),
    "weights of experts that do not": ("Olmoe", choosing(normalized=True)),
    "scores by sigmoid": ("Glm4Moe", choosing(sigmoid=False)),
    "groups of experts": ("Glm4Moe", choosing(groups=1, chosen_groups=1)),
    "the factor of all experts": ("Glm4Moe", choosing(scale=1.0)),
}


@pytest.mark.parametrize("trait", WITHOUT)
def test_a_trait_that_is_left_out_is_noticed(trait: str) -> None:
    """In one of the first few that have it: behind a window of one token, for instance, turning changes nothing."""
    kind, leave_out = WITHOUT[trait]
    having = [each for each in (drawn(kind, number) for number in range(FEW)) if leave_out(each.config) != each.config]
    errors = [each.error(loaded(leave_out(each.config), each.tensors)) / each.logits.abs().max() for each in having]
    assert max(errors) > NOTICEABLE


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("GptOss", "self_attn.sinks", -1e4),
        ("GptOss", "gate_up_proj_bias", 0.0),
        ("GptOss", "router.bias", 0.0),
        ("Qwen2Moe", "shared_expert_gate.weight", 0.0),
        ("Glm4Moe", "e_score_correction_bias", 0.0),
    ],
)
def test_a_weight_of_experts_or_sinks_that_is_left_out_is_noticed(kind: str, name: str, value: float) -> None:
    errors = []
    for want in (drawn(kind, number) for number in range(FEW)):
        without = {key: torch.full_like(each, value) for key, each in want.tensors.items() if key.endswith(name)}
        assert without
        errors.append(want.error(loaded(want.config, want.tensors | without)) / want.logits.abs().max())
    assert max(errors) > NOTICEABLE


def test_the_clamped_gate_is_that_of_transformers_beyond_its_limits() -> None:
    import transformers
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    theirs = GptOssExperts(transformers.GptOssConfig(hidden_size=8, intermediate_size=8, num_local_experts=1))
    rows = 9 * torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    assert (rows.abs() > 7).sum() > 100
    want = theirs._apply_gate(rows)
    torch.testing.assert_close(Clamped()(torch.cat((rows[:, ::2], rows[:, 1::2]), dim=1)), want)
