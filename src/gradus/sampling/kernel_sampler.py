"""Sampling without the host: what a draw needs of its request lies on the device, one row per slot.

The host computes nothing and sends nothing, so a draw can be a part of a CUDA graph. There are two: rows that ask for
no more than a temperature need one reading of their logits; any others take part in `sample_asked`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gradus.device.transfer import upload_parts
from gradus.engine.plan import Column
from gradus.kernels.sampling.full import sample_asked
from gradus.kernels.sampling.plain import sample
from gradus.kernels.sampling.slot_settings import SlotSettings
from gradus.sampling.sampler import Drawn, DrawnLogprobs, Rows, Sampler


class SlotDraw(NamedTuple):
    """What was drawn for a step's rows. tokens: int64 [R], -1 where no logit was finite. pairs: of an asked draw, as in
    DrawnLogprobs, with the most that can be asked for."""

    tokens: Tensor
    pairs: Tensor | None


class KernelSampler(Sampler):
    """slots: how many sequences run at once. The tables have one row more, for padding to sample in."""

    def __init__(self, vocab_size: int, device: torch.device, slots: int) -> None:
        super().__init__(vocab_size, device, slots + 1)
        table, seen = self.table, self.table.allocate()
        self.settings = SlotSettings(
            table.seeds, table.floats, table.ints, table.bias_values, table.banned_until, seen,
            table.rows, table.bias_tokens.shape[1], seen.stride(0),
        )  # fmt: skip

    def needs_full(self, slots: Column) -> bool:
        """Whether one of these slots asks for more than a temperature."""
        return not self.table.plain[slots].all()

    def draw_slots(
        self, logits: Tensor, slots: Tensor, positions: Tensor, newest: Tensor | None = None, *, full: bool
    ) -> SlotDraw:
        """Draw a token for each row: logits [R, V] of any floating type; slots, positions: integers [R].

        newest: integers [slots + 1, 1], takes each slot's token too. full: as `needs_full` says of these slots.
        """
        if full:
            return SlotDraw(*sample_asked(logits, self.settings, slots, positions, newest))
        table = self.table
        return SlotDraw(sample(logits, table.seeds, positions, table.temperatures, slots=slots, latest=newest), None)

    def guess_slots(self, logits: Tensor, slots: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """What these slots would draw by temperature and seed alone: int64 [R], new or `out`, -1 as in SlotDraw."""
        table = self.table
        return sample(logits, table.seeds, positions, table.temperatures, slots=slots, out=out)

    def drawn(self, draw: SlotDraw, slots: Column) -> Drawn:
        """The rows of these slots, the first ones, with as many log-probabilities as they ask for."""
        tokens = draw.tokens[: len(slots)]
        if draw.pairs is None:
            return Drawn(tokens)
        counts = self.table.reporting[slots]
        if (counts < 0).all():
            return Drawn(tokens)
        return Drawn(tokens, DrawnLogprobs(draw.pairs[: len(slots)], counts))

    def sample(self, logits: Tensor, rows: Rows) -> Drawn:
        slots, positions = upload_parts([rows.slots, rows.positions], torch.int64, self.device)
        return self.drawn(self.draw_slots(logits, slots, positions, full=self.needs_full(rows.slots)), rows.slots)
