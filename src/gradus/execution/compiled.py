"""Runs steps of few tokens on a CPU in compiled kernels, and all others in torch.

A step of a few tokens is a few hundred operations of some ten microseconds each, and torch starts and ends its threads
for every one of them. `gradus.kernels.cpu` runs the whole step in one call: decodes, verified drafts, short prompts and
chunks. A prompt of more tokens than the kernels take at once goes through them in several passes, as far as that is
faster than torch, whose products need many rows (`kernels/cpu/rows.py`). The kernels also compute the products of draft
heads.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.device.threads import end_spinning, own_threads
from gradus.engine.plan import Column, Plan
from gradus.execution.passes import TorchPass, kept
from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.decode_step import run
from gradus.kernels.cpu.kept.code import place_of
from gradus.kernels.cpu.kept.shown import FUNCTIONS, Compiling, shown
from gradus.kernels.cpu.kept.watch import watched
from gradus.kernels.cpu.model import DecodeModel, KernelLinear
from gradus.kernels.cpu.rows import most_rows
from gradus.kernels.step.plain import spans_of, write_drawn
from gradus.kernels.step.rows import StepRows, VerifyRows
from gradus.models import Linear, Model
from gradus.sampling.sampler import DrawnLogprobs, Rows, Sampler, SlotDraw
from gradus.scheduling.draft_shapes import DraftShape

log = logging.getLogger(__name__)

NOTICEABLE_S = 1.0
LINES_S = 4  # between two lines of the log about a compilation
_caller = threading.local()  # threads: torch's thread count for this thread outside `alone`; None outside any `alone`


class CompiledPass(TorchPass):
    """Runs steps of up to `most_tokens` tokens in the kernels, and longer ones in torch.

    threads: how many share a decode step. heads: a module that prepares a step's inputs, such as draft heads; its
    matrices are replaced by ones that multiply few rows in the kernels. Raises Unsupported for a model without kernels.
    """

    def __init__(
        self,
        model: Model,
        attention: PagedAttention,
        sampler: Sampler,
        *,
        threads: int,
        heads: nn.Module | None = None,
        keeps_hidden: bool = False,
    ) -> None:
        super().__init__(model, attention, sampler, keeps_hidden=keeps_hidden)
        storage = attention.storage
        heads = nn.Identity() if heads is None else heads
        matrices = {name: part for name, part in heads.named_modules() if isinstance(part, Linear)}
        self.decode = DecodeModel(
            model,
            cache=[(*storage.rows(layer), storage.place(layer)[0]) for layer in range(model.config.num_layers)],
            tables=attention.tables,
            page_size=storage.page_size,
            windows=[group.window for group in storage.groups],
            threads=threads,
            extra_linears=[*matrices.values()],
        )
        for number, (name, linear) in enumerate(matrices.items()):
            heads.set_submodule(name, KernelLinear(linear, self.decode, number))
        self.most_tokens = most_rows(self.decode.kind, model.config.hidden_size)
        self.most_rows = min(self.most_tokens, MOST_ROWS)
        self.decode.lend_experts()
        self._made: Tensor | None = None  # what the kernels have made of the newest step: tokens or logits
        nothing = np.zeros(1, np.int64)
        with announced(), torch.inference_mode():  # its table is empty: it stores into page 0, which is padding
            self.decode.run(nothing, nothing, nothing)

    def context(self, plan: Plan) -> AbstractContextManager[object]:
        """Keep torch to one thread if the kernels take the plan; otherwise let it use all its threads."""
        scores = plan.spans and any(span.scores is not None for span in plan.spans)
        return alone() if 0 < plan.tokens <= self.most_tokens and not scores else together()

    def compute(self, slots: Column, rows: StepRows, shape: DraftShape, early: bool, full: bool) -> Tensor | None:
        self._made = None
        if not 0 < len(rows.tokens) <= self.most_tokens:
            return super().compute(slots, rows, shape, early, full)
        before = spans_of(rows)[1] if isinstance(rows, VerifyRows) else 0
        return self._run(rows.tokens, rows.positions, rows.slots, before, None, greedy=not full)

    def run_prompts(self, batch: Batch, rows: Rows) -> tuple[Tensor | None, Rows, list[DrawnLogprobs]]:
        """Run the model on a batch: in the kernels, which keep no hidden states to compute scores from, or in torch."""
        self._made = None
        if not 0 < len(batch.token_ids) <= self.most_tokens or batch.scores:
            return super().run_prompts(batch, rows)
        self.attention.update_pages(batch)
        tokens, positions, owners = (part.numpy() for part in (batch.token_ids, batch.positions, batch.owners))
        before = np.concatenate([np.arange(count) for count in batch.counts])
        greedy = not self.sampler.needs_full(rows.slots)
        hidden = self._run(tokens, positions, owners, before, batch.logits_rows.numpy(), greedy=greedy)
        return hidden, rows, []

    def _run(
        self,
        tokens: Column,
        positions: Column,
        slots: Column,
        before: Column | int,
        wanted: Column | None,
        *,
        greedy: bool,
    ) -> Tensor | None:
        """Run the step in the kernels, MOST_ROWS rows at a time: later rows find the keys of earlier ones in the cache.

        Keeps logits, or if `greedy`, the token of each row's largest logit. Returns hidden states if they are kept.
        """
        if len(tokens) <= MOST_ROWS:
            self._made = self.decode.run(tokens, positions, slots, before, wanted, greedy=greedy)
            return self.decode.hidden(slice(None) if wanted is None else wanted) if self.keeps_hidden else None
        made, hidden = list[Tensor](), list[Tensor]()
        wanted = np.arange(len(tokens)) if wanted is None else wanted
        before = np.broadcast_to(before, len(tokens))
        for first in range(0, len(tokens), MOST_ROWS):
            rows = slice(first, first + MOST_ROWS)
            mine = wanted[(wanted >= first) & (wanted < rows.stop)] - first
            near = np.minimum(before[rows], np.arange(len(tokens[rows])))
            made.append(self.decode.run(tokens[rows], positions[rows], slots[rows], near, mine, greedy=greedy).clone())
            if self.keeps_hidden:
                hidden.append(self.decode.hidden(mine))
        self._made = torch.cat(made)
        return torch.cat(hidden) if self.keeps_hidden else None

    def draw(self, rows: StepRows, hidden: Tensor | None, written: Column | None, early: bool, full: bool) -> SlotDraw:
        made = self._made
        if made is None or full or self.sampler.watching or isinstance(rows, VerifyRows):
            return super().draw(rows, hidden, written, early, full)
        tokens = made.numpy()
        if written is not None:
            write_drawn(rows.slots, rows.ends, tokens, written)
        return SlotDraw(tokens, None)  # no sampler: there is nothing to record or to check

    def choose(self, rows: Rows, hidden: Tensor | None, written: Column | None, full: bool) -> SlotDraw:
        """Draw a token for each row, from its hidden state or from what the kernels have made of it."""
        made = self._made
        if made is None:
            return super().choose(rows, hidden, written, full)
        drawn = self.sampler.sample(made, rows) if made.is_floating_point() else self.sampler.take(made, rows)
        return kept(drawn, rows, written)

    def guesses(self, rows: Rows, hidden: Tensor | None) -> Tensor:
        made = self._made
        if made is None:
            return super().guesses(rows, hidden)
        return self.sampler.guess(made, rows.slots, rows.positions) if made.is_floating_point() else made


@contextmanager
def alone() -> Iterator[None]:
    """Keep torch's work for this thread in this thread alone. Other threads of the program are not affected.

    Torch has little to do around the kernels: embedding and sampling. If a program leaves OpenMP its default, torch's
    threads would keep spinning afterwards and take a core from the kernels' threads. The threads of an earlier torch
    step, or of the program's own work between steps, spin in the same way, so they are ended.
    """
    end_spinning()
    outer = getattr(_caller, "threads", None)
    _caller.threads = outer or torch.get_num_threads()
    try:
        with own_threads(1):
            yield
    finally:
        _caller.threads = outer


@contextmanager
def together() -> Iterator[None]:
    """Give torch back the threads that it had before `alone`: a draft model reads prompts within quiet steps."""
    outer = getattr(_caller, "threads", None)
    with nullcontext() if outer is None else own_threads(outer):
        yield


@contextmanager
def announced() -> Iterator[None]:
    """Log that kernels are being compiled, where that takes long: a later start reads them from disk, and logs nothing.
    Say how far it is, in the log unless a front end shows it (`shown`).

    Where no folder can be written, every start compiles.
    """
    show, lines = shown.get(), count()

    def say(now: Compiling) -> None:
        line = next(lines)
        if line == 0:
            log.warning("%s", _reason(now))
        elif show is None and line % LINES_S == 0:
            part = f": {min(now.done, FUNCTIONS)} of about {FUNCTIONS} functions" if now.compiler is None else ""
            log.warning("%s%s (%.0f s)", now.task, part, now.seconds)
        if show is not None:
            show(now)

    with watched(NOTICEABLE_S, say):
        yield


def _reason(now: Compiling) -> str:
    if now.compiler is not None:
        return now.task
    if place_of(run):
        return f"{now.task}: once, for some seconds"
    return f"{now.task} for some seconds, as at every start: no folder can be written to"
