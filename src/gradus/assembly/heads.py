"""Builds drafters from trained heads and the model that they draft for."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradus.config.options import EngineConfig
from gradus.kernels.step.draft_reference import first_inputs_reference, next_inputs_reference
from gradus.kernels.step.rows import DraftInputs
from gradus.models import Model
from gradus.models.config import ModelConfig
from gradus.sampling.sampler import Sampler
from gradus.speculative.heads import DraftHeads, first_heads
from gradus.speculative.heads_drafter import HeadsDrafter, draft_head
from gradus.speculative.heads_folder import (
    HeadsConfig,
    check_drafts,
    check_sizes,
    check_weights,
    read_config,
    read_heads,
)

if TYPE_CHECKING:
    from gradus.sampling.kernel_sampler import KernelSampler


def trained_heads(config: EngineConfig, model: ModelConfig) -> HeadsConfig | None:
    """Read the configuration of the heads that `speculate` names, if any. Raises ConfigError for heads of a model with
    other sizes, and for more drafts than heads."""
    if config.heads is None:
        return None
    trained = read_config(Path(config.heads))
    check_sizes(Path(config.heads), trained, model)
    check_drafts(trained, config.drafts)
    return trained


def check_model(config: EngineConfig, trained: HeadsConfig, model: Model) -> None:
    """Raise ConfigError for heads that were trained for other weights."""
    check_weights(Path(config.heads or ""), trained, model)


def most_drafts(config: EngineConfig, trained: HeadsConfig | None) -> int:
    """The most drafts per step and sequence, limited by the number of heads."""
    return config.most_drafts if trained is None else min(config.most_drafts, trained.shape.drafts)


def hidden_states(config: EngineConfig, model: Model) -> Tensor:
    return torch.zeros(config.max_sequences + 1, model.config.hidden_size, dtype=model.dtype, device=model.device)


class HeadsModule(nn.Module):
    """The heads in a folder, and the part of the model's output head that they draft with."""

    def __init__(self, folder: Path, trained: HeadsConfig, model: Model) -> None:
        super().__init__()
        self.trained = trained
        self.heads = read_heads(folder, trained, dtype=model.dtype, device=model.device)
        self.output = draft_head(model, trained.shape.vocabulary)


def heads_in_torch(module: HeadsModule, model: Model, states: Tensor, sampler: Sampler) -> HeadsDrafter:
    """Build the drafter in torch. Slots and the history are in the host's memory. sampler: the model's."""
    config, count, device = model.config, module.trained.shape.drafts, model.device

    def begin(
        slots: Tensor, history: Tensor, known: Tensor, states: Tensor, *, count: int, together: int
    ) -> DraftInputs:
        slots, history, known = slots.to(device), history.to(device), known.to(device)
        return first_inputs_reference(slots, history, known, states, embed, count=count, together=together)

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        tokens = tokens.to(device).clamp(0, config.vocab_size - 1)
        return model.embed(tokens, positions.clamp(max=config.context_length - 1))[:, : config.hidden_size]

    def guess(logits: Tensor, slots: Tensor, positions: Tensor, out: Tensor) -> None:
        owners, places, logits = slots.numpy(force=True), positions.numpy(force=True), logits.float()
        if not sampler.greedy(owners):  # sampling parameters cover the whole vocabulary, heads only its first tokens
            logits = F.pad(logits, (0, config.vocab_size - logits.shape[1]), value=float("-inf"))
        out.copy_(sampler.guess(logits, owners, places))

    follow = partial(next_inputs_reference, embed=embed)
    return HeadsDrafter([module.heads] * count, module.output, states, begin, follow, guess)


def heads_on_kernels(module: HeadsModule, model: Model, states: Tensor, sampler: "KernelSampler") -> HeadsDrafter:
    """Build the drafter on a GPU's kernels. model: as it was loaded."""
    from gradus.kernels.core.view import view  # here: Triton is not everywhere
    from gradus.kernels.step.draft_inputs import first_inputs, next_inputs

    # the first few of all heads' features would need a copy
    ours = [view(first_heads(module.heads, count)) for count in range(1, module.trained.shape.drafts + 1)]
    tables = model.embedding_tables()
    begin, follow = partial(first_inputs, tables=tables), partial(next_inputs, tables=tables)
    return HeadsDrafter(cast(list[DraftHeads], ours), view(module.output), states, begin, follow, sampler.guess_slots)
