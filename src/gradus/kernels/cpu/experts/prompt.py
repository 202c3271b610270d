"""The experts of a prompt, whose other products torch computes.

Torch would multiply expert by expert, a few rows each, and widen quantized weights on one thread for it. Here all
experts of a layer are the stages of a decode step, with more rows: up to PROMPT_ROWS of a prompt are routed by torch,
grouped by expert, and multiplied.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from gradus.models.experts import Mixture

PROMPT_ROWS = 512
"""Rows that are grouped at once: as many as give each of 128 experts a panel, if a row takes 8 of them."""

STAGES = 4  # of a layer's experts: divide, up, down, mix


class MixedPrompts:
    """Mixes the experts of any number of rows.

    step: whose room it uses. prompts: by layer, its first stage. decode: the DecodeModel that runs stages; a proxy.
    """

    def __init__(self, step: Any, prompts: Mapping[int, int], decode: Any) -> None:
        room = step.room
        self.prompts, self.decode = prompts, decode
        self.given, self.choices, self.weights = (
            torch.from_numpy(each) for each in (room.given, room.choices, room.weights)
        )

    def mix(self, layer: int, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """rows: [N, D]; chosen, weights: [N, k]. Returns the weighted sum of each row's experts, float32 [N, D]."""
        out = torch.empty(rows.shape, dtype=torch.float32)
        count, each = len(rows), chosen.shape[1]
        chosen, order = chosen.sort(-1)
        weights = weights.gather(1, order)
        slabs = -(-count // PROMPT_ROWS)
        for slab in range(slabs):
            first, end = count * slab // slabs, count * (slab + 1) // slabs
            mine, some = slice(first, end), end - first
            self.given[:some] = rows[mine]
            self.choices[:some, :each], self.weights[:some, :each] = chosen[mine], weights[mine]
            self.decode.run_stages(self.prompts[layer], STAGES, some)
            out[mine] = self.given[:some]
        return out


def lend(prompts: MixedPrompts, mixtures: Sequence[Mixture | None], owner: object) -> None:
    """Let the mixtures of a model's layers multiply their rows in the kernels, as long as `owner` lives."""
    for layer, mixture in enumerate(mixtures):
        if mixture is not None:
            mixture.grouped = partial(prompts.mix, layer)
            finalize(owner, _take_back, mixture, mixture.grouped)


def _take_back(mixture: Mixture, grouped: object) -> None:
    if mixture.grouped is grouped:  # else another owner has lent its own since
        mixture.grouped = None
