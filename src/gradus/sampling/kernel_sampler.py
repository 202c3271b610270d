"""Samples without the host: the settings that a draw needs are on the device, one row per slot.

The host computes nothing and sends nothing, so a draw can be part of a CUDA graph. There are two kernels: if all rows
ask for a temperature at most, `sample` reads their logits once; otherwise `sample_asked` draws for all rows.
"""

import torch
from torch import Tensor

from gradus.device.transfer import upload_parts
from gradus.engine.plan import Column
from gradus.kernels.sampling.full import sample_asked
from gradus.kernels.sampling.plain import sample
from gradus.kernels.sampling.slot_settings import SlotSettings
from gradus.sampling.constraints import Constraints
from gradus.sampling.sampler import Drawn, DrawnLogprobs, Rows, Sampler, SlotDraw


class KernelSampler(Sampler):
    """Samples in kernels. slots: how many sequences run at once. The tables have one more row, for padding."""

    def __init__(
        self, vocab_size: int, device: torch.device, slots: int, constraints: Constraints | None = None
    ) -> None:
        super().__init__(vocab_size, device, slots + 1, constraints)
        table, seen, masks = self.table, self.table.allocate(), self.table.allocate_masks()
        self.settings = SlotSettings(
            table.seeds, table.floats, table.ints, table.bias_values, table.banned_until, seen, masks,
            table.rows, table.bias_tokens.shape[1], seen.stride(0), masks.stride(0),
        )  # fmt: skip

    def needs_full(self, slots: Column) -> bool:
        """True if any of `slots` asks for more than a temperature."""
        return not self.table.plain[slots].all()

    def draw_slots(
        self, logits: Tensor, slots: Tensor, positions: Tensor, history: Tensor | None = None, *, full: bool
    ) -> SlotDraw:
        """Draw a token for each row: logits [R, V] of any floating type; slots, positions: integers [R].

        history: integers [slots + 1, C]; if given, each slot's token is written there too, as in
        `gradus.kernels.sampling.plain.sample`. full: `needs_full(slots)`.
        """
        if full:
            return SlotDraw(*sample_asked(logits, self.settings, slots, positions, history))
        table = self.table
        return SlotDraw(sample(logits, table.seeds, positions, table.temperatures, slots=slots, history=history), None)

    def guess_slots(self, logits: Tensor, slots: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Draw by temperature and seed alone. Returns int64 [R], new or `out`, with -1 as in SlotDraw."""
        table = self.table
        return sample(logits, table.seeds, positions, table.temperatures, slots=slots, out=out)

    def sample(self, logits: Tensor, rows: Rows) -> Drawn:
        slots, positions = upload_parts([rows.slots, rows.positions], torch.int64, self.device)
        tokens, pairs, _ = self.draw_slots(logits, slots, positions, full=self.needs_full(rows.slots))
        counts = self.table.reporting[rows.slots]
        return Drawn(tokens, None if pairs is None or (counts < 0).all() else DrawnLogprobs(pairs, counts))
