"""From dense to experts without training: cut a model's MLPs into slices, or copy them.

An MLP is a sum over its features, so any partition of the features is a sum of small MLPs: experts. All of them
together, each with weight 1, are the MLP again. E copies, with weights that sum to one, are the MLP too, whatever the
router chooses. Real weights therefore test a mixture, without a download.

Shapes: D hidden_size, F features of the MLP, E experts.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.models import Model, ModelConfig, create_model
from gradus.models.config import Experts

FAMILY = "qwen3_moe"  # the decoder that takes experts; the configuration says which of its parts are there
EVEN = 0.01  # logits this small leave the weights nearly equal, and their order as it was


def sliced(model: Model, count: int, chosen: int, routers: list[Tensor] | None = None) -> Model:
    """Cut each MLP into `count` experts. A token takes `chosen` of them, each with a weight of (about) 1.

    routers: [count, D] for each layer; by default of zeros, which weighs all experts alike and prefers none.
    Raises ConfigError for a model whose MLPs cannot be cut so.
    """
    width = divided(model.config, count)
    experts = Experts(count, chosen, width, scale=chosen)
    made = with_experts(model, experts)
    for number, (old, new) in enumerate(layers_of(model, made)):
        new.experts.up.weight.copy_(old.gate_up.weight)  # gates, then features: a slice's lie where an expert's do
        new.experts.down.weight.copy_(old.down.weight.unflatten(1, (count, width)).transpose(0, 1).flatten(0, 1))
        router = torch.zeros(count, model.config.hidden_size) if routers is None else routers[number]
        new.experts.router.product.weight.copy_(EVEN * router)
    return made


def random_routers(model: Model, count: int, seed: int = 0) -> list[Tensor]:
    """Routers [count, D] for `sliced` that nothing has been fitted to."""
    generator = torch.Generator().manual_seed(seed)
    shape = count, model.config.hidden_size
    return [torch.randn(shape, generator=generator) * shape[1] ** -0.5 for _ in model.layers]


def copied(model: Model, count: int, chosen: int, seed: int = 0) -> Model:
    """Copy each MLP `count` times. The routers are random, and their weights sum to one."""
    made = with_experts(model, Experts(count, chosen, model.config.intermediate_size))
    generator = torch.Generator().manual_seed(seed)
    for old, new in layers_of(model, made):
        gates, features = old.gate_up.weight.chunk(2)
        new.experts.up.weight.copy_(torch.cat([gates.repeat(count, 1), features.repeat(count, 1)]))
        new.experts.down.weight.copy_(old.down.weight.repeat(count, 1))
        weight = new.experts.router.product.weight
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return made


def layers_of(*models: Model) -> list[tuple[Any, ...]]:
    """The layers of several models, side by side."""
    return list(zip(*(model.layers for model in models), strict=True))


def divided(config: ModelConfig, count: int) -> int:
    """Features of one of `count` slices."""
    if config.intermediate_size % count:
        raise ConfigError(f"an MLP of {config.intermediate_size} features cannot be cut into {count} equal experts")
    return config.intermediate_size // count


@torch.no_grad()
def with_experts(model: Model, experts: Experts) -> Model:
    """Make a model with experts in the place of each MLP. Experts are unset, all else is the model's."""
    config = replace(model.config, family=FAMILY, intermediate_size=0, experts=(experts,) * model.config.num_layers)
    made = create_model(config, dtype=model.dtype, device=model.device)
    theirs = dict(model.named_parameters())
    mine = {name: value for name, value in made.named_parameters() if ".experts." not in name}
    dense = {name for name in theirs if name.split(".")[-2] in ("gate_up", "down")}
    if mine.keys() != theirs.keys() - dense or any(name.endswith("bias") for name in dense):
        raise ConfigError(f"p14 cuts the MLPs of models like Llama, and this one is a {model.config.family}")
    for name, value in mine.items():
        value.copy_(theirs[name])
    return made
