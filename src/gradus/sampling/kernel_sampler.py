"""Sampling without the host: what a draw needs of its request lies on the device, one row per slot.

Most requests ask for a temperature and a seed, or for neither. Then a kernel reads the logits once, and the host
computes nothing and sends nothing; so the draw can be a part of a CUDA graph. Steps in which a request asks for more
(penalties, bias, top-k, top-p, min-p, log-probabilities) are sampled as ever.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.device.transfer import upload, upload_parts
from gradus.engine.plan import Admission
from gradus.kernels.sampling import sample
from gradus.sampling.sampler import Drawn, Row, Sampler, finite_only


class KernelSampler(Sampler):
    """slots: how many sequences run at once. The tables have one row more, for padding to sample in.

    seeds: int64 [slots + 1]; temperatures: float32 [slots + 1], 0 being greedy.
    """

    def __init__(self, vocab_size: int, device: torch.device, slots: int) -> None:
        super().__init__(vocab_size, device)
        self.seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.temperatures = torch.zeros(slots + 1, dtype=torch.float32, device=device)
        self.special: set[int] = set()  # slots whose last owner asks, or asked, for more than the tables hold

    def admit(self, admissions: Sequence[Admission]) -> None:
        super().admit(admissions)
        if not admissions:
            return
        numbers = [admission.slot for admission in admissions]
        owners = [self._slots[number] for number in numbers]
        self.special.difference_update(numbers)
        self.special.update(number for number, slot in zip(numbers, owners, strict=True) if not slot.plain)
        where, seeds = upload(numbers + [slot.signed_seed for slot in owners], torch.int64, self.device).chunk(2)
        self.seeds[where] = seeds
        self.temperatures[where] = upload([slot.params.temperature for slot in owners], torch.float32, self.device)

    def draw_slots(
        self, logits: Tensor, slots: Tensor, positions: Tensor, latest: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """logits: [R, V], of any floating type; slots, positions: integers [R]. Returns tokens and maxima, [R] each.

        latest: int64 [slots + 1], takes the tokens too; then those returned are -1 where no logit was finite.
        """
        return sample(logits, self.seeds, positions, self.temperatures, slots=slots, latest=latest)

    def _sample(self, logits: Tensor, rows: Sequence[Row]) -> Drawn:
        if any(row.slot in self.special for row in rows):
            return super()._sample(logits, rows)
        numbers = [row.slot for row in rows], [row.position for row in rows]
        slots, positions = upload_parts(numbers, torch.int64, self.device)
        return Drawn(finite_only(*self.draw_slots(logits, slots, positions)))
