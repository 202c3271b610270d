"""Builds drafters from trained heads and the model that they draft for."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from gradus.config.options import EngineConfig
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
from gradus.speculative.states import HiddenStates

if TYPE_CHECKING:
    from gradus.sampling.kernel_sampler import KernelSampler
    from gradus.speculative.kernel_heads_drafter import KernelHeadsDrafter


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


def hidden_states(config: EngineConfig, model: Model) -> HiddenStates:
    return HiddenStates(config.max_sequences, model.config.hidden_size, model.dtype, model.device)


class HeadsModule(nn.Module):
    """The heads that `speculate` names, and the part of the model's output head that they draft with."""

    def __init__(self, trained: HeadsConfig, config: EngineConfig, model: Model) -> None:
        super().__init__()
        self.heads = read_heads(Path(config.heads or ""), trained, dtype=model.dtype, device=model.device)
        self.output = draft_head(model, trained.shape.vocabulary)


def heads_drafter(module: HeadsModule, model: Model, states: HiddenStates, sampler: Sampler) -> HeadsDrafter:
    """Build the drafter in torch. sampler: the model's."""
    width = model.config.vocab_size

    def guess(logits: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        owners, places, logits = np.array(slots.tolist()), np.array(positions.tolist()), logits.float()
        if not sampler.greedy(owners):  # sampling parameters cover the whole vocabulary, heads only its first tokens
            logits = F.pad(logits, (0, width - logits.shape[1]), value=float("-inf"))
        return sampler.guess(logits, owners, places)

    return HeadsDrafter(module.heads, module.output, model, states, guess)


def heads_on_kernels(
    trained: HeadsConfig, config: EngineConfig, model: Model, states: HiddenStates, sampler: "KernelSampler"
) -> "KernelHeadsDrafter":
    """Build the drafter on a GPU's kernels. model: as it was loaded."""
    from gradus.kernels.core.view import view  # here: Triton is not everywhere
    from gradus.speculative.kernel_heads_drafter import KernelHeadsDrafter

    module = HeadsModule(trained, config, model)
    ours = [view(first_heads(module.heads, count)) for count in range(1, trained.shape.drafts + 1)]
    return KernelHeadsDrafter(
        cast(list[DraftHeads], ours), view(module.output), model.embedding_tables(), states, sampler
    )
