"""Sampling without the host: what a draw needs of its request lies on the device, one row per slot.

Most requests ask for a temperature and a seed, or for neither. Then a kernel reads the logits once, and the host
computes nothing and sends nothing; so the draw can be a part of a CUDA graph. Steps in which a request asks for more
(penalties, bias, top-k, top-p, min-p, log-probabilities) are sampled by the reference.
"""

import torch
from torch import Tensor

from gradus.device.transfer import upload_parts
from gradus.kernels.sampling import sample
from gradus.sampling.sampler import Drawn, Rows, Sampler


class KernelSampler(Sampler):
    """slots: how many sequences run at once. The tables have one row more, for padding to sample in."""

    def __init__(self, vocab_size: int, device: torch.device, slots: int) -> None:
        super().__init__(vocab_size, device, slots + 1)

    def draw_slots(
        self, logits: Tensor, slots: Tensor, positions: Tensor, latest: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """logits: [R, V], of any floating type; slots, positions: integers [R]. Returns tokens and maxima, [R] each.

        latest: int64 [slots + 1], takes the tokens too; then those returned are -1 where no logit was finite.
        """
        table = self.table
        return sample(logits, table.seeds, positions, table.temperatures, slots=slots, latest=latest)

    def sample(self, logits: Tensor, rows: Rows) -> Drawn:
        if not self.table.plain[rows.slots].all():
            return super().sample(logits, rows)
        numbers = rows.slots.tolist(), rows.positions.tolist()
        slots, positions = upload_parts(numbers, torch.int64, self.device)
        tokens, best = self.draw_slots(logits, slots, positions)
        return Drawn(torch.where(best.isfinite(), tokens, -1))
