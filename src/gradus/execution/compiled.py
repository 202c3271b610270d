"""Steps of few tokens on a CPU through compiled kernels, all others through torch.

A step of a few tokens is a few hundred operations of some ten microseconds each, and in torch every one of them starts
and ends its threads anew. `gradus.kernels.cpu` has the whole step in one call: decodes, verified drafts, short prompts
and chunks. Steps of more tokens than that takes have work enough for torch's products (`kernels/cpu/rows.py`). Heads
that draft before a step have their products in the kernels too.
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
from gradus.kernels.cpu.model import DecodeModel
from gradus.kernels.cpu.product import MOST_ROWS
from gradus.kernels.cpu.rows import most_rows
from gradus.models import Linear, Model
from gradus.sampling.sampler import Drawn, Rows, Sampler
from gradus.speculative.history import History

log = logging.getLogger(__name__)

NOTICEABLE_S = 1.0
_caller = threading.local()  # threads: how many torch has for this thread outside of `alone`; None where none is open


class CompiledRunner(ModelRunner):
    """threads: that share a decode step.

    beside: modules that a step's inputs are made with, as heads that draft. Their matrices are replaced by some that
    multiply few rows in the kernels. Raises Unsupported for a model that there are no kernels for.
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
        self.max_kernel_rows = most_rows(self.decode.kind, model.config.hidden_size)
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
        """As above. Where all rows are greedy no logits are made."""
        self.sampler.admit(admissions)
        tokens = self._choose(batch, rows)
        return super().sampled(batch, rows, ()) if tokens is None else self.sampler.take(tokens, rows)

    def guessed(self, batch: Batch, rows: Rows) -> Tensor:
        tokens = self._choose(batch, rows)
        return super().guessed(batch, rows) if tokens is None else tokens

    def _choose(self, batch: Batch, rows: Rows) -> Tensor | None:
        """Each row's token within the head's stage, where the kernels take the step and all rows are greedy."""
        if self._takes(sum(batch.counts)) and self.sampler.greedy(rows.slots):
            return self._in_kernels(batch, greedy=True)
        return None

    def logits(self, batch: Batch) -> Tensor:
        """As above; a step of few tokens through the kernels."""
        return self._in_kernels(batch) if self._takes(sum(batch.counts)) else super().logits(batch)

    def _in_kernels(self, batch: Batch, *, greedy: bool = False) -> Tensor:
        """Logits, or the tokens of the largest."""
        self.attention.update_pages(batch)
        slots = [slot for slot, count in zip(batch.slots, batch.counts, strict=True) for _ in range(count)]
        before = [number for count in batch.counts for number in range(count)]
        wanted = batch.logits_rows.tolist()
        made = self.decode.run(batch.token_ids, batch.positions, slots, before, wanted or [0], greedy=greedy)
        if self.keeps_hidden:
            self.hidden = self.decode.hidden(wanted)
        return made[: len(wanted)]

    def _takes(self, tokens: int) -> bool:
        """Whether the kernels take a step of so many tokens."""
        return 0 < tokens <= self.max_kernel_rows

    def quiet(self, plan: Plan) -> AbstractContextManager[None]:
        """Torch in one thread where the kernels take the plan, and in all of them where they do not."""
        tokens = len(plan.decodes) + sum(len(span.tokens) for span in plan.spans)
        return alone() if self._takes(tokens) else together()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """A step of no sequence: its table is empty, so it stores into page 0, which is padding."""
        nothing = torch.zeros(1, dtype=torch.int64)
        self.decode.run(nothing, nothing, [0])


class KernelLinear(Linear):
    """A matrix whose products of few rows are made by the kernels, in float32, and of more by torch."""

    def __init__(self, linear: Linear, decode: DecodeModel, number: int) -> None:
        super().__init__(linear.matrix_id, linear.in_features, linear.out_features, False, torch.float32, "meta")
        self.linear, self.decode, self.number = linear, decode, number

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """None: it has that of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not 0 < len(rows) <= MOST_ROWS:
            return self.linear(x)
        return self.decode.multiply(self.number, rows).view(*x.shape[:-1], -1)


@contextmanager
def alone() -> Iterator[None]:
    """Torch computes what this thread asks for in this thread alone. For other threads of the program nothing changes.

    Beside the kernels it has little to do, embedding and sampling. Its threads would go on spinning after that, in
    programs that leave OpenMP its default, and take a core from the kernels' own. So do the threads of an earlier step
    that was torch's, and of what the program computes between steps: they are ended.
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
    """Torch with the threads that it had before `alone`: so a draft model reads a prompt within a quiet step."""
    outer = getattr(_caller, "threads", None)
    with nullcontext() if outer is None else own_threads(outer):
        yield


@contextmanager
def announced() -> Iterator[None]:
    """Say why it takes so long, if it does: the first time on a machine, kernels are compiled."""
    says = threading.Timer(NOTICEABLE_S, log.warning, ["compiling the CPU kernels: once, for some seconds"])
    says.start()
    try:
        yield
    finally:
        says.cancel()
