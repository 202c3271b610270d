"""Make a model from its configuration, and fill one with noise of a seed."""

from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from gradus.device.transfer import numbered
from gradus.models.config import ModelConfig
from gradus.models.families.records import FAMILIES
from gradus.models.layers import Linear, LinearFactory, Model
from gradus.models.weights import assign, parameters

CHUNK = 1 << 20  # random values drawn at once: 4 MiB, which stay in the CPU's cache until they are copied


def model_class(family: str) -> type[Model]:
    """The class that computes models of a family."""
    module, name = FAMILIES[family].model.split(":")
    return cast(type[Model], getattr(import_module(module), name))


def create_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    linear: LinearFactory = Linear,
) -> Model:
    """Make the model, with memory allocated and weights unset: `load_weights` or `randomize` comes next.

    dtype: of activations, norms and embeddings. `linear` decides how matrices are kept.
    """
    device = numbered(torch.device(device))
    model = model_class(config.family)(config, linear, dtype, device).requires_grad_(False).eval()
    model.dtype, model.device = dtype, device
    shorten_lookups(model)
    return model


def shorten_lookups(model: Model) -> None:
    """Put a module's parts where Python looks first.

    Torch keeps them where Python looks last, behind `__getattr__`, which costs as much as a small kernel. A layer makes
    dozens of such lookups, which show in a one-row step on a CPU. Assigning a part anew still works, because torch then
    clears that place.
    """
    for module in model.modules():
        vars(module).update(module._modules, **module._parameters)


@torch.no_grad()
def randomize(model: Model, seed: int = 0, std: float = 0.02) -> None:
    """Fill `model` with normal noise of `std` (norms: around one), generated on its own device.

    The values depend on the seed, the configuration and the kind of device; on a CPU they are the same everywhere.
    Whatever type the weights are kept in, the same values are rounded to it.
    """
    for module, name, start, values in noise(model, next(model.parameters()).device, seed, std):
        assign(module, name, start, values)
    if model.config.tie_embeddings:
        _copy_tied(model)


def noise(
    model: Model, device: torch.device, seed: int = 0, std: float = 0.02
) -> Iterator[tuple[nn.Module, str, int, Tensor]]:
    """Yield random values for every parameter, in pieces: module, name, first row, rows. See `randomize`."""
    generator = torch.Generator(device).manual_seed(seed)
    for path, module, name, shape in parameters(model):
        if path == "head.weight" and model.config.tie_embeddings:  # tied, but stored twice: the embedding again
            continue
        # a vector of weights belongs to a norm, a scale to a layer's result, and factors to experts
        center = 1.0 if name in ("scale", "factors") or (name == "weight" and len(shape) == 1) else 0.0
        step, again = max(1, CHUNK // prod(shape[1:])), _rows_again(model.config, module)
        drawn, kept = shape[0] - len(again), []
        for start in range(0, drawn, step):
            rows = min(step, drawn - start)
            values = torch.empty((rows, *shape[1:]), device=device).normal_(center, std, generator=generator)
            yield module, name, start, values
            if again and start + rows > again.start:
                kept.append(values[max(again.start - start, 0) :])
        for start, values in zip(accumulate(map(len, kept), initial=drawn), kept, strict=False):
            yield module, name, start, values


def _rows_again(config: ModelConfig, module: nn.Module) -> range:
    """The rows of a matrix that are its last ones too: those of keys that are values."""
    if not isinstance(module, Linear) or module.matrix_id.role != "qkv":
        return range(0)
    layer = module.matrix_id.layer
    if layer is None or not config.has_values_from_keys(layer):
        return range(0)
    queries, keys, _ = module.out_features
    return range(queries, queries + keys)


def _copy_tied(model: Model) -> None:
    """Give a tied head that keeps its matrix in another form the embedding's values."""
    if any(path == "head.weight" for path, *_ in parameters(model)):
        assign(model.head, "weight", 0, model.embedding.weight)
