"""A rank's model: the sizes of its part, its exchanging layers, and its slice of the weights."""

from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gradus.execution.passes import RunModel
from gradus.loading import Checkpoint, Progress, model_name
from gradus.loading.checkpoint import RANDOM_SEED
from gradus.models.config import ModelConfig, Shard
from gradus.models.create import create_model, noise, shorten_lookups
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import Embedding, Model
from gradus.models.weights import assign, checked, load_weights, parameters
from gradus.parallel.group import Check, Group, nothing_known
from gradus.parallel.layers import ParallelLinears, SummedEmbedding, SummedMixture, SummedNorm, meet_neighbors
from gradus.parallel.pipeline import Ends, Stage
from gradus.parallel.place import Place
from gradus.parallel.slices import Slices, cut_of, left_out, modules_of


class Part(NamedTuple):
    """A rank's part of a model.

    run: runs it in step with the other ranks. stage: those that share its matrices, all ranks if there is no pipeline.
    ends: the ways between the stages of a pipeline.
    """

    model: Model
    run: RunModel
    stage: Group
    ends: Ends | None = None

    def abort(self) -> None:
        """End all waiting for a lost rank: see `Group.abort`."""
        for group in (self.stage, *(self.ends or ())):
            group.abort()


def load_part(
    checkpoint: Checkpoint,
    place: Place,
    path: str,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    check: Check = nothing_known,
) -> Part:
    """Load this rank's part of the model, keeping only its own rows and columns. Waits for the other ranks.

    path: the rendezvous file. check: as in `Group`. The model's `config` has the whole vocabulary, as its logits do,
    but only this rank's layers, heads and features.
    """
    config, shard = checkpoint.config, place.shard(checkpoint.config)
    stage = Group(f"{path}-{place.stage}", place.part, place.tensor, device, check)
    ends = None if place.pipeline == 1 else Ends.meet(place, path, device, check)
    whole = create_model(config, dtype=dtype, device="meta")
    linear = ParallelLinears(stage, config.vocab_size)
    model = create_model(shard.config, dtype=dtype, device=device, linear=linear)
    for end in left_out(config, place):
        setattr(model, end, torch.nn.Module())
    kept = modules_of(whole, place)
    if checkpoint.tensors is None:
        _randomize_part(model, whole, kept, shard)
    else:
        if progress is not None:
            progress.begin(f"loading part {place.rank + 1} of {place.count} of {model_name(checkpoint.name)}", None)
        load_weights(model, Slices(whole, model, kept, checked(whole, checkpoint.tensors), shard))
    if place.tensor > 1:
        _share_norms(model, config, stage)
        _share_experts(model, stage)
    if place.first:
        for name in model.token_tables:
            table = cast(Embedding, model.get_submodule(name))
            model.set_submodule(name, SummedEmbedding(table, shard.tokens.start, stage))
    model.config = replace(
        shard.config,
        vocab_size=config.vocab_size,
        bos_token_id=config.bos_token_id,
        eos_token_ids=config.eos_token_ids,
    )
    shorten_lookups(model)
    return Part(model, model, stage) if ends is None else Part(model, Stage(model, place, ends), stage, ends)


def _share_norms(part: Model, whole: ModelConfig, stage: Group) -> None:
    """Let the ranks of a stage normalize all heads of a token together, where the model does (OLMo)."""
    for heads in part.modules():
        if isinstance(heads, Heads) and heads.across_heads and heads.q_norm is not None and heads.k_norm is not None:
            copies = stage.size * heads.num_kv_heads // whole.num_kv_heads
            heads.q_norm = SummedNorm(heads.q_norm, whole.q_width, 1, stage)
            heads.k_norm = SummedNorm(heads.k_norm, whole.kv_width, copies, stage)


def _share_experts(part: Model, stage: Group) -> None:
    """Add up the ranks' sums of their experts, together with the MLP next to them where that is possible."""
    for layer in list(part.modules()):
        if isinstance(experts := getattr(layer, "experts", None), Mixture):
            layer.experts = SummedMixture(experts, stage)
    meet_neighbors(part)


@torch.no_grad()
def _randomize_part(model: Model, whole: Model, kept: set[int], shard: Shard) -> None:
    """Fill a rank's part with its slice of the whole model's random weights: together the ranks are that model."""
    there = [(module, name, shape[0]) for _, module, name, shape in parameters(whole) if id(module) in kept]
    here = [module for _, module, _, _ in parameters(model)]
    mine = {(id(module), name): (part, rows) for part, (module, name, rows) in zip(here, there, strict=True)}
    pieces: list[Tensor] = []
    for module, name, _, values in noise(whole, model.device, RANDOM_SEED):
        if id(module) not in kept:
            continue
        pieces.append(values)
        part, rows = mine[id(module), name]
        if sum(piece.shape[0] for piece in pieces) == rows:
            assign(part, name, 0, cut_of(whole, module, name, rows, 0, shard)(torch.cat(pieces)))
            pieces.clear()
