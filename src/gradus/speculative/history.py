"""The tokens of every slot's sequence, on the device: all of them, or the newest alone.

The host learns a step's tokens when it commits the step, and plans the next one before. So the length of a sequence and
its newest token are known here first. Drafters that read the text need all of it; other steps only the newest token.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.device.transfer import upload, upload_parts
from gradus.engine.plan import REJECTED, Admission, Column


def history_bytes(slots: int, context_length: int, *, whole: bool) -> int:
    return (slots + 1) * (4 * (context_length if whole else 1) + 8)


class History:
    """The tokens and the length of each slot's sequence.

    tokens: int32 [slots + 1, context_length], or [slots + 1, 1] for the newest of each, where not `whole`.
    lengths: int64 [slots + 1]. longest: the context length. The last slot is padding's, with one token.

    `newest` and `append` run in every step. On a CPU they use the host's memory directly: a handful of torch operations
    would take some hundredths of each step, with or without drafts.
    """

    def __init__(self, slots: int, context_length: int, device: torch.device, *, whole: bool = True) -> None:
        self.longest, self.whole = context_length, whole
        self.tokens = torch.zeros(slots + 1, context_length if whole else 1, dtype=torch.int32, device=device)
        self.lengths = torch.ones(slots + 1, dtype=torch.int64, device=device)
        on_host = device.type == "cpu"
        self._mine = (self.tokens.numpy(), self.lengths.numpy()) if on_host else None  # the same memory

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Give slots to new owners, with the tokens known so far: in one copy, since many may arrive at once."""
        if not admissions:
            return
        known = {admission.slot: admission.tokens for admission in admissions}  # a slot may change hands twice
        slots = np.array([*known], np.int64)
        ends = np.array([len(tokens) for tokens in known.values()], np.int64)
        if not self.whole:
            owned, lengths = upload_parts([slots, ends], torch.int64, self.device)
            self.lengths[owned] = lengths
            return
        total = int(ends.sum())
        # flat positions in the table: each slot's tokens fill its row from the start
        where = np.arange(total) + np.repeat(slots * self.tokens.shape[1] + ends - ends.cumsum(), ends)
        said = np.fromiter(chain.from_iterable(known.values()), np.int64, total)
        places, tokens, owned, lengths = upload_parts([where, said, slots, ends], torch.int64, self.device)
        self.tokens.view(-1)[places] = tokens.int()
        self.lengths[owned] = lengths

    def record(self, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Append a step's tokens: slot, position and token of each row, int64 [R]. Rejected rows are not counted.

        A row without a finite logit counts as token 0: its sequence has ended, and at most runs one step in vain.
        """
        kept = tokens.clamp(min=0).int()
        self.tokens[slots, self._places(positions)] = kept  # a rejected row writes beyond the length
        self.lengths.scatter_reduce_(0, slots, torch.where(tokens > REJECTED, positions + 1, 0), "amax")

    def rewind(self, slots: Sequence[int], counts: Sequence[int], newest: Sequence[int]) -> None:
        """Take back the last `counts` tokens of each slot. newest: those before them, which may be lost."""
        owned, back, tokens = upload_parts([slots, counts, newest], torch.int64, self.device)
        self.lengths[owned] = lengths = self.lengths[owned] - back
        self.tokens[owned, self._places(lengths - 1)] = tokens.int()

    def newest(self, slots: Column) -> tuple[list[int], list[int]]:
        """Return each slot's length and its last token, on the host."""
        if self._mine is not None:
            said, counts = self._mine
            lengths = counts[slots]
            return lengths.tolist(), said[slots, np.minimum(lengths, said.shape[1]) - 1].tolist()
        there = upload(slots, torch.int64, self.device)
        counted = self.lengths[there]
        return counted.tolist(), self.tokens[there, self._places(counted - 1)].tolist()

    def fill_in(self, batch: Batch) -> None:
        """Replace UNKNOWN in the batch by the newest tokens, without waiting for a device."""
        if not batch.unknown:
            return
        rows, slots = [batch.query_start[span] for span in batch.unknown], [batch.slots[span] for span in batch.unknown]
        if self._mine is not None:
            batch.token_ids.numpy()[rows] = self.newest(np.array(slots))[1]
            return
        rows_there, slots_there = upload([*rows, *slots], torch.int64, self.device).chunk(2)
        places = self._places(self.lengths[slots_there] - 1)
        batch.token_ids[rows_there] = self.tokens[slots_there, places].long()

    def _places(self, positions: Tensor) -> Tensor:
        return positions if self.whole else positions.clamp(max=0)

    def append(self, slots: Column, positions: Column, tokens: Tensor) -> None:
        """Append tokens as `record` does, at slots and positions that the host knows."""
        if self._mine is None:
            there, places = upload_parts([slots, positions], torch.int64, self.device)
            self.record(there, places, tokens)
            return
        said, counts = self._mine
        drawn = tokens.numpy()
        stands = drawn > REJECTED
        if not stands.all():
            slots, positions, drawn = slots[stands], positions[stands], drawn[stands]
        said[slots, np.minimum(positions, said.shape[1] - 1)] = np.maximum(drawn, 0)
        np.maximum.at(counts, slots, positions + 1)
