"""Decode steps on a CPU through compiled kernels, those that verify drafts too; all other steps through torch.

A step of a few decodes is a few hundred operations of some ten microseconds each, and in torch every one of them starts
and ends its threads anew. `gradus.kernels.cpu` has the whole step in one call. Prompts, chunks, and steps of more rows
than that takes have work enough for torch's products.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.engine.plan import Plan
from gradus.execution.runner import LatestTokens, ModelRunner
from gradus.kernels.cpu.model import DecodeModel
from gradus.kernels.cpu.product import MOST_ROWS
from gradus.models import Model
from gradus.sampling.sampler import Drawn, Rows, Sampler

log = logging.getLogger(__name__)

NOTICEABLE_S = 1.0


class CompiledRunner(ModelRunner):
    """threads: that share a decode step. Raises Unsupported for a model that there are no kernels for."""

    attention: PagedAttention
    quick_rows = MOST_ROWS

    def __init__(
        self,
        model: Model,
        attention: PagedAttention,
        sampler: Sampler,
        latest: LatestTokens | None = None,
        *,
        threads: int,
    ) -> None:
        super().__init__(model, attention, sampler, latest)
        storage = attention.storage
        self.decode = DecodeModel(
            model,
            cache=[(*storage.rows(layer), storage.place(layer)[0]) for layer in range(model.config.num_layers)],
            tables=attention.tables,
            page_size=storage.page_size,
            windows=[group.window for group in storage.groups],
            threads=threads,
        )
        with announced():
            self._warm_up()

    def draw(self, plan: Plan) -> tuple[Batch, Rows, Drawn]:
        with quiet(plan):
            return super().draw(plan)

    def answer(self, plan: Plan) -> Tensor:
        with quiet(plan):
            return super().answer(plan)

    def logits(self, batch: Batch) -> Tensor:
        """As above; a step of a few decodes and verifications through the kernels."""
        if not takes(batch.counts, np.bincount(batch.row_spans, minlength=len(batch.counts)).tolist()):
            return super().logits(batch)
        self.attention.update_pages(batch)
        slots = [slot for slot, count in zip(batch.slots, batch.counts, strict=True) for _ in range(count)]
        before = [number for count in batch.counts for number in range(count)]
        logits = self.decode.run(batch.token_ids, batch.positions, slots, before)
        every = len(batch.row_spans) == len(logits)
        if self.keeps_hidden:
            hidden = self.decode.hidden(len(logits))
            self.hidden = hidden if every else hidden[batch.logits_rows]
        return logits if every else logits[batch.logits_rows]

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """A step of no sequence: its table is empty, so it stores into page 0, which is padding."""
        nothing = torch.zeros(1, dtype=torch.int64)
        self.decode.run(nothing, nothing, [0])


def takes(counts: Sequence[int], logits: Sequence[int]) -> bool:
    """Whether the kernels take a step of spans with so many tokens, and so many logits: they are few, and each span is
    one token or verifies drafts, which takes logits of every row."""
    few = 0 < sum(counts) <= MOST_ROWS
    return few and all(count in (1, wanted) for count, wanted in zip(counts, logits, strict=True))


def quiet(plan: Plan) -> AbstractContextManager[None]:
    """Torch alone where the kernels take the plan."""
    ones = [1] * len(plan.decodes)
    counts = ones + [len(span.tokens) for span in plan.spans]
    return alone() if takes(counts, ones + [span.logits for span in plan.spans]) else nullcontext()


@contextmanager
def alone() -> Iterator[None]:
    """Torch computes in the caller's thread alone.

    Beside the kernels it has little to do, embedding and sampling. Its threads would go on spinning after that, in
    programs that leave OpenMP its default, and take a core from the kernels' own: a step then takes twice as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def announced() -> Iterator[None]:
    """Say why it takes so long, if it does: the first time on a machine, kernels are compiled."""
    says = threading.Timer(NOTICEABLE_S, log.warning, ["compiling the CPU kernels: once, for some seconds"])
    says.start()
    try:
        yield
    finally:
        says.cancel()
