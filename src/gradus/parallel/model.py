"""A rank's model: the sizes of its part, layers that exchange, and its slice of the weights."""

from dataclasses import replace

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Progress
from gradus.loading.checkpoint import RANDOM_SEED
from gradus.models.config import ModelConfig, Shard
from gradus.models.create import create_model, noise, shorten_lookups
from gradus.models.layers import Model
from gradus.models.weights import assign, checked, load_weights, parameters
from gradus.parallel.group import Group
from gradus.parallel.layers import ParallelLinears, SummedEmbedding
from gradus.parallel.slices import Slices, cut_of


def shard_of(config: ModelConfig, rank: int, count: int) -> Shard:
    """The part of a rank. Raises ConfigError for a model that does not divide."""
    try:
        return config.shard(rank, count)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel {count}: {error}") from error


def load_part(
    checkpoint: Checkpoint,
    group: Group,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
) -> Model:
    """Load this rank's part of the model. Only its own rows and columns are kept.

    The model's `config` has the whole vocabulary, since logits do, and the rank's own heads and features.
    """
    config = checkpoint.config
    shard = shard_of(config, group.rank, group.size)
    whole = create_model(config, dtype=dtype, device="meta")
    linear = ParallelLinears(group, config.vocab_size)
    model = create_model(shard.config, dtype=dtype, device=device, linear=linear)
    if checkpoint.tensors is None:
        _randomize_part(model, whole, shard)
    else:
        if progress is not None:
            progress.begin(f"loading part {group.rank + 1} of {group.size} of {checkpoint.name}", None)
        load_weights(model, Slices(whole, checked(whole, checkpoint.tensors), shard))
    model.embedding = SummedEmbedding(model.embedding, shard.tokens.start, group)
    ends = {"bos_token_id": config.bos_token_id, "eos_token_ids": config.eos_token_ids}
    model.config = replace(shard.config, vocab_size=config.vocab_size, **ends)
    shorten_lookups(model)
    return model


@torch.no_grad()
def _randomize_part(model: Model, whole: Model, shard: Shard) -> None:
    """Fill a rank's part with its slice of the whole model's noise, so that the ranks together are that model."""
    mine = {(path, name): module for path, module, name, _ in parameters(model)}
    paths = {(id(module), name): path for path, module, name, _ in parameters(whole)}
    pieces: list[Tensor] = []
    for module, name, _, values in noise(whole, next(model.parameters()).device, RANDOM_SEED):
        pieces.append(values)
        rows, path = sum(piece.shape[0] for piece in pieces), paths[id(module), name]
        if rows == _rows(module, name):
            cut = cut_of(whole, module, name, rows, 0, shard)
            assign(mine[path, name], name, 0, cut(torch.cat(pieces)))
            pieces.clear()


def _rows(module: torch.nn.Module, name: str) -> int:
    return int(module.get_parameter(name).shape[0])
