"""Runs steps of few tokens on a CPU in compiled kernels, and all others in torch.

A step of a few tokens is a few hundred operations of some ten microseconds each, and torch starts and ends its threads
for every one of them. `gradus.kernels.cpu` runs the whole step in one call: decodes, verified drafts, short prompts and
chunks. A prompt of more tokens than the kernels take at once goes through them in several passes, as far as that is
faster than torch, whose products need many rows (`kernels/cpu/rows.py`). The kernels also compute the products of draft
heads.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.device.threads import end_spinning, own_threads
from gradus.engine.plan import Admission, Plan
from gradus.execution.runner import ModelRunner
from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.decode_step import run
from gradus.kernels.cpu.kept import place_of, watched
from gradus.kernels.cpu.model import DecodeModel
from gradus.kernels.cpu.rows import most_rows
from gradus.models import Linear, Model
from gradus.sampling.sampler import Drawn, Rows, Sampler
from gradus.speculative.history import History

log = logging.getLogger(__name__)

NOTICEABLE_S = 1.0
_caller = threading.local()  # threads: torch's thread count for this thread outside `alone`; None outside any `alone`


class CompiledRunner(ModelRunner):
    """Runs steps of up to `most_tokens` tokens in the kernels, and longer ones in torch.

    threads: how many share a decode step. beside: a module that prepares a step's inputs, such as draft heads; its
    matrices are replaced by ones that multiply few rows in the kernels. Raises Unsupported for a model without kernels.
    """

    attention: PagedAttention

    def __init__(
        self,
        model: Model,
        attention: PagedAttention,
        sampler: Sampler,
        history: History | None = None,
        *,
        threads: int,
        beside: nn.Module | None = None,
    ) -> None:
        super().__init__(model, attention, sampler, history)
        storage = attention.storage
        beside = nn.Identity() if beside is None else beside
        matrices = {name: part for name, part in beside.named_modules() if isinstance(part, Linear)}
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
            beside.set_submodule(name, KernelLinear(linear, self.decode, number))
        self.most_tokens = most_rows(self.decode.kind, model.config.hidden_size)
        self.max_kernel_rows = min(self.most_tokens, MOST_ROWS)
        with announced():
            self._warm_up()

    def draw(self, plan: Plan) -> tuple[Batch, Rows, Drawn]:
        with self.quiet(plan):
            return super().draw(plan)

    def answer(self, plan: Plan) -> Tensor:
        with self.quiet(plan):
            return super().answer(plan)

    def guess(self, plan: Plan) -> Tensor:
        with self.quiet(plan):
            return super().guess(plan)

    def sampled(self, batch: Batch, rows: Rows, admissions: Sequence[Admission]) -> Drawn:
        """Run the model and draw; when all rows are greedy, the kernels choose the tokens and make no logits."""
        self.sampler.admit(admissions)
        tokens = self._choose(batch, rows)
        return super().sampled(batch, rows, ()) if tokens is None else self.sampler.take(tokens, rows)

    def guessed(self, batch: Batch, rows: Rows) -> Tensor:
        tokens = self._choose(batch, rows)
        return super().guessed(batch, rows) if tokens is None else tokens

    def _choose(self, batch: Batch, rows: Rows) -> Tensor | None:
        """Choose each row's token in the kernels' output head.

        None if the kernels do not take the step, or if a row is not greedy.
        """
        if self._takes(sum(batch.counts), batch.scores) and self.sampler.greedy(rows.slots):
            return self._in_kernels(batch, greedy=True)
        return None

    def logits(self, batch: Batch) -> Tensor:
        """Compute the model's logits, in the kernels when they take the step."""
        return self._in_kernels(batch) if self._takes(sum(batch.counts), batch.scores) else super().logits(batch)

    def _in_kernels(self, batch: Batch, *, greedy: bool = False) -> Tensor:
        """Run the step in the kernels, MOST_ROWS rows at a time: later rows find the keys of earlier ones in the cache.

        Returns logits, or if `greedy`, the token of each row's largest logit.
        """
        self.attention.update_pages(batch)
        slots = [slot for slot, count in zip(batch.slots, batch.counts, strict=True) for _ in range(count)]
        places = [number for count in batch.counts for number in range(count)]  # of each row in its span
        wanted = batch.logits_rows.tolist()
        made, hidden = list[Tensor](), list[Tensor]()
        for first in range(0, len(slots), MOST_ROWS):
            rows = slice(first, first + MOST_ROWS)
            before = [min(place, number) for number, place in enumerate(places[rows])]
            mine = [row - first for row in wanted if first <= row < first + MOST_ROWS]
            found = self.decode.run(
                batch.token_ids[rows], batch.positions[rows], slots[rows], before, mine, greedy=greedy
            )
            made.append(found if len(slots) <= MOST_ROWS else found.clone())
            if self.keeps_hidden:
                hidden.append(self.decode.hidden(mine))
        if self.keeps_hidden:
            self.hidden = torch.cat(hidden)
        return made[0] if len(made) == 1 else torch.cat(made)

    def _takes(self, tokens: int, scores: Sequence[object]) -> bool:
        """True if the kernels take a step of `tokens` tokens. They keep no hidden states to compute `scores` from."""
        return 0 < tokens <= self.most_tokens and not scores

    def quiet(self, plan: Plan) -> AbstractContextManager[None]:
        """Keep torch to one thread if the kernels take the plan; otherwise let it use all its threads."""
        tokens = len(plan.decodes) + sum(len(span.tokens) for span in plan.spans)
        scores = [span.scores for span in plan.spans if span.scores is not None]
        return alone() if self._takes(tokens, scores) else together()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Run one step without a sequence: its table is empty, so it stores into page 0, which is padding."""
        nothing = torch.zeros(1, dtype=torch.int64)
        self.decode.run(nothing, nothing, [0])


class KernelLinear(Linear):
    """A matrix that the kernels multiply with few rows, in float32, and torch with more."""

    def __init__(self, linear: Linear, decode: DecodeModel, number: int) -> None:
        super().__init__(linear.matrix_id, linear.in_features, linear.out_features, False, torch.float32, "meta")
        self.linear, self.decode, self.number = linear, decode, number

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """Allocate nothing: the weights are those of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not 0 < len(rows) <= MOST_ROWS:
            return self.linear(x)
        return self.decode.multiply(self.number, rows).view(*x.shape[:-1], -1)


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

    Where no folder can be written, every start compiles.
    """

    def say() -> None:
        if place_of(run):
            log.warning("compiling the CPU kernels: once, for some seconds")
        else:
            log.warning("compiling the CPU kernels for some seconds, as at every start: no folder can be written to")

    with watched(NOTICEABLE_S, say):
        yield
