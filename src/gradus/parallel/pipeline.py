"""A stage of a pipeline: takes rows from the stage before it, runs its own layers, and passes them on.

(GPipe, Huang et al. 2019.) Each micro-batch's step is in one stage, so as many steps are under way as there are stages,
and every stage runs another one. All ranks get the plans in the same order and run them in it, so what a step reads
from a stage's cache has been stored there by an earlier one.

The first stage embeds tokens, and the last one samples. Sampled tokens travel twice: to the first stage's devices,
which run them next, and as bytes to rank 0, which commits the step.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.engine.plan import Admission, Column, Plan
from gradus.execution.passes import Reading, RunModel, TorchPass, kept
from gradus.kernels.step.rows import StepRows
from gradus.models.attention import Attention
from gradus.models.layers import Model
from gradus.parallel.group import Check, Group, Sending
from gradus.parallel.place import Place
from gradus.sampling.sampler import Drawn, DrawnLogprobs, Rows, SlotDraw
from gradus.speculative.history import History


class Ends(NamedTuple):
    """The two ways between stages, each a group of all ranks.

    onward: hidden states, each rank with the same part of the next stage. back: tokens, from the last stage to the
    first. On a GPU a group's exchanges run one after another, so tokens in the same group would wait behind rows that
    wait for them.
    """

    onward: Group
    back: Group

    @classmethod
    def meet(cls, place: Place, path: str, device: torch.device, check: Check) -> "Ends":
        onward, back = (Group(f"{path}-{name}", place.rank, place.count, device, check) for name in ("onward", "back"))
        ends = cls(onward, back)
        ends._connect(place)
        return ends

    def _connect(self, place: Place) -> None:
        """Exchange a number each way.

        NCCL connects two ranks at their first exchange, and the sender's thread waits until the other one receives. The
        last stage would wait with its first tokens for a step that rank 0 plans only once it has them.
        """
        number = torch.zeros(1, dtype=torch.int64, device=self.onward.device)
        if not place.first:
            self.onward.receive(number, place.before)
        if not place.last:
            self.onward.send(number, place.after).wait()
        if place.last:
            self.back.send(number, place.after).wait()
        if place.first:
            self.back.receive(number, place.before)


class Stage:
    """Runs a model on a rank that has some of its layers, in place of the model's `forward`."""

    def __init__(self, model: Model, place: Place, ends: Ends) -> None:
        self.place = place
        self._model, self._ends = model, ends
        self._sent: deque[Sending] = deque()

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Return the hidden states behind this stage's layers, normalized in the last stage. [N], [N] → [N, D]."""
        place, model = self.place, self._model
        if place.first:
            x = model.embed(token_ids, positions)
        else:
            like = torch.empty(len(token_ids), model.config.hidden_size, dtype=model.dtype, device=model.device)
            x = self._ends.onward.receive(like, place.before)
        x = model.run_layers(x, positions, attention)
        if place.last:
            return model.norm(x)
        self._keep(self._ends.onward.send(x, place.after))
        return x

    def send_back(self, tokens: Tensor) -> None:
        """Send the tokens that the last stage has sampled to the first stage."""
        self._keep(self._ends.back.send(tokens.to(self._model.device), self.place.after))

    def fetch(self, count: int) -> Tensor:
        """Receive the tokens of the oldest step that this rank of the first stage has not received yet: int64 [R]."""
        like = torch.empty(count, dtype=torch.int64, device=self._model.device)
        return self._ends.back.receive(like, self.place.before)

    def _keep(self, sending: Sending) -> None:
        """Keep what is being sent until it has been received. The receiver is never more steps behind than stages."""
        self._sent.append(sending)
        while len(self._sent) > self.place.pipeline + 1:
            self._sent.popleft().wait()


class StagePass(TorchPass):
    """A stage's pass, with the model, cache and sampler of another one.

    Only the last stage draws. The others take token 0 for every row: it reaches no result, and the first stage replaces
    it in the history. It fetches a step's tokens only when a later step needs them, so that it can run other
    micro-batches meanwhile.
    """

    def __init__(self, passes: TorchPass, stage: Stage, history: History) -> None:
        super().__init__(passes.model, passes.attention, passes.sampler)
        self.run_model = self.stage = stage
        self._history = history
        self._unfetched: deque[Rows] = deque()  # the sampled rows of steps that this stage has run, oldest first

    def context(self, plan: Plan) -> AbstractContextManager[object]:
        if self.stage.place.first:
            self._fetch_for(plan)
        return super().context(plan)

    def read(self, rows: StepRows | None, prompts: Batch, admissions: Sequence[Admission]) -> Reading:
        return super().read(rows, prompts, admissions if self.stage.place.last else ())

    def run_prompts(self, batch: Batch, rows: Rows) -> tuple[Tensor | None, Rows, list[DrawnLogprobs]]:
        return super().run_prompts(batch if self.stage.place.last else replace(batch, scores=[]), rows)

    def choose(self, rows: Rows, hidden: Tensor | None, written: Column | None, full: bool) -> SlotDraw:
        if self.stage.place.last:
            draw = super().choose(rows, hidden, written, full)
            if len(rows):
                self.stage.send_back(torch.from_numpy(draw.tokens))
            return draw
        if self.stage.place.first and len(rows):
            self._unfetched.append(rows)
        return kept(Drawn(torch.zeros(len(rows), dtype=torch.int64)), rows, written)

    def _fetch_for(self, plan: Plan) -> None:
        """Fetch the tokens of all steps up to the last one with a slot of this plan, and of all that are old enough."""
        mine = {*plan.decodes.slots.tolist(), *(span.slot for span in plan.spans)}
        mine |= {admission.slot for admission in plan.admissions}
        needed = [number for number, rows in enumerate(self._unfetched, 1) if not mine.isdisjoint(rows.slots.tolist())]
        old = len(self._unfetched) - (self.stage.place.pipeline - 1)
        for _ in range(max(old, 0, *needed)):
            rows = self._unfetched.popleft()
            kept(Drawn(self.stage.fetch(len(rows))), rows, self._history.columns[0])


def in_step(passes: TorchPass, run_model: RunModel, history: History) -> TorchPass:
    """Return the pass of a rank that runs its part of the model by `run_model`, in step with the other ranks."""
    if isinstance(run_model, Stage):
        return StagePass(passes, run_model, history)
    passes.run_model = run_model
    return passes
