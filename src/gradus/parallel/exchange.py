"""A rank's exchange of activations on a GPU: few rows through inboxes, many through NCCL.

The number of rows decides, so all ranks take the same way. Steps of decodes have few rows: then a sum, the residual
addition and the norm are one launch (`kernels/rows/summed_norm.py`).
"""

from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.core.overlap import early_launches
from gradus.kernels.rows.norm import add_rms_norm
from gradus.kernels.rows.summed_norm import Inboxes, summed, summed_rms_norm, summed_rows
from gradus.parallel.group import Group


class Exchange:
    """group: the ranks. inboxes: None where all goes through NCCL.

    few: up to how many rows go through inboxes: as many as they hold, until `choice.py` has measured.
    """

    def __init__(self, group: Group, inboxes: Inboxes | None) -> None:
        self.group, self.inboxes = group, inboxes
        self.few = 0 if inboxes is None else inboxes.rows

    def sum(self, x: Tensor) -> Tensor:
        """Add every rank's x, [N, D], which may be overwritten."""
        if (inboxes := self._inboxes_for(x)) is not None:
            return summed(x.contiguous(), inboxes)
        return self.group.sum(x)

    def add_rms_norm(self, stream: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """stream += the sum of every rank's x, [N, D]. Returns stream / rms(stream) * weight. x may be overwritten."""
        if weight.dtype == x.dtype == stream.dtype and (inboxes := self._inboxes_for(x)) is not None:
            return summed_rms_norm(x.contiguous(), inboxes, stream, weight, eps)
        return add_rms_norm(stream, self.group.sum(x.contiguous()), weight, eps)

    def look_up(self, ids: Tensor, table: Tensor, first: int) -> Tensor:
        """Look tokens up in a table whose rows the ranks share, this one's from token `first` on: [N] → [N, D]."""
        if (inboxes := self._inboxes_for(table[:0], len(ids))) is not None:
            # a step's first launches write what later kernels read before their wait (kernels/core/overlap.py)
            with early_launches(False):
                return summed_rows(ids.contiguous(), table, first, inboxes)
        rows = ids - first
        mine = (rows >= 0) & (rows < len(table))
        found = F.embedding(rows.where(mine, 0), table)
        return self.group.sum(found.where(mine[:, None], 0.0))

    def _inboxes_for(self, x: Tensor, rows: int | None = None) -> Inboxes | None:
        """Return the inboxes if `rows` rows like those of x, by default its own, go through them."""
        if self.inboxes is None or (len(x) if rows is None else rows) > self.few or not self.inboxes.fit(x):
            return None
        return self.inboxes

    def join(self, x: Tensor) -> Tensor:
        """Collect every rank's columns: [R, C] → [ranks, R, C]."""
        return self.group.gather(x)

    def abort(self) -> None:
        """End all waiting for a lost rank, by kernels and by NCCL."""
        if self.inboxes is not None:
            self.inboxes.stop.fill_(1)
        self.group.abort()

    @property
    def aborted(self) -> bool:
        """Whether kernels have stopped waiting, so that results mean nothing."""
        return self.inboxes is not None and bool(self.inboxes.stop.numpy()[0])


class Summands:
    """Hands a product's result on this rank to the norm that reads the residual stream next."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._left: Tensor | None = None

    def leave(self, x: Tensor) -> None:
        assert self._left is None, "a summand was left, and no norm has added it"
        self._left = x

    def add_rms_norm(self, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add the summands of all ranks to the stream, and normalize it."""
        x, self._left = self._left, None
        assert x is not None, "no product has left a summand"
        return self.exchange.add_rms_norm(stream, x, weight, eps)
