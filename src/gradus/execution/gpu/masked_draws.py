"""Draws the tokens of steps with masked rows, once the tokens before them are known.

What a grammar allows next depends on the newest token, which the step before is still drawing when a step is launched.
So only the model's pass is launched with the step. The draw follows when the step before has arrived:

    host    launch model k+1 │ wait for tokens k │ matchers advance, threads fill the masks │ launch draw k+1 │ …
    GPU          draw k      │ model k+1 ─────────────────────────────────────────────────────│ draw k+1        │

The masks are filled and copied while the model runs, so the GPU waits for them only if that takes longer than the
model. The runner launches a pending draw before anything else of the next step (`finish`), and a step's result does so
if it is asked for first.
"""

from collections.abc import Callable, Sequence

import torch

from gradus.device.transfer import Staging, current, upload
from gradus.engine.plan import Column, Sampled
from gradus.execution.result import StepResult
from gradus.sampling.constraints import Constrained, Constraints, accept
from gradus.sampling.slots import SlotTable


class MaskedDraws:
    """Holds back the draws of steps with masked rows.

    table: the sampler's, whose masks the draws read. slots: how many sequences run at once.
    """

    def __init__(self, constraints: Constraints, table: SlotTable, slots: int) -> None:
        self.constraints, self.table, self.device = constraints, table, table.device
        words = table.masks.shape[1]
        self._staging = Staging((slots, words), torch.int32, self.device)
        self._arrived = torch.empty(slots, words, dtype=torch.int32, device=self.device)
        self._copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._taken = torch.cuda.Event() if self._copies is not None else None  # the newest masks, by the table
        self._newest: MaskedStep | None = None

    def masked(self, slots: Column) -> bool:
        """Whether any of these slots has a mask."""
        return bool(self.table.masked[slots].any())

    def hold(self, slots: Column, rows: int, draw: Callable[[], StepResult]) -> "MaskedStep":
        """Hold back the draw of a step whose model has been launched. slots: of its rows that get tokens."""
        answers = self.constraints.of(slots.tolist())
        before = self._newest if self._newest is not None and not self._newest.taken_in else None
        self._newest = MaskedStep(self, answers, slots, rows, draw, before)
        if before is None:
            self.fill(self._newest)
        return self._newest

    def finish(self) -> None:
        """Launch the draw that is held back, if there is one."""
        if self._newest is not None:
            self._newest.draw()

    # -- for the steps -------------------------------------------------------------------------------------------------

    def follow(self, step: "MaskedStep") -> None:
        """The tokens of `step` are known: fill the masks of the step after it."""
        if self._newest is not None and self._newest.before is step:
            self.fill(self._newest)

    def fill(self, step: "MaskedStep") -> None:
        """Begin to fill the masks of a step, whose matchers have taken in all earlier tokens."""
        self.constraints.fill(step.answers, self._staging.fill())

    def send(self, slots: Sequence[int]) -> None:
        """Wait for the masks, one for each of `slots`, and copy them to the table, beside the model's work."""
        self.constraints.threads.wait()
        arrived = self._arrived[: len(slots)]
        where = upload(slots, torch.int64, self.device)
        if self._copies is None or self._taken is None:
            self._staging.send(arrived)
            self.table.masks[where] = arrived
            return
        self._copies.wait_event(self._taken)
        with torch.cuda.stream(self._copies):
            self._staging.send(arrived)
        torch.cuda.current_stream(self.device).wait_stream(self._copies)
        self.table.masks.index_copy_(0, where, arrived)
        self._taken.record(torch.cuda.current_stream(self.device))


class MaskedStep:
    """The result of a step with masked rows. rows: as in `Result`. taken_in: whether matchers have its tokens.

    before: the step whose tokens its masks wait for.
    """

    def __init__(
        self,
        draws: MaskedDraws,
        answers: Sequence[Constrained],
        slots: Column,
        rows: int,
        draw: Callable[[], StepResult],
        before: "MaskedStep | None",
    ) -> None:
        self.answers, self.rows, self.before, self.taken_in = answers, rows, before, False
        self._draws, self._slots, self._draw = draws, slots, draw
        self._result: StepResult | None = None
        self._sampled: Sampled | None = None

    @torch.inference_mode()
    def draw(self) -> StepResult:
        """Launch the draw, unless it has been."""
        if self._result is None:
            if self.before is not None:
                self.before.get()
                self.before = None  # its results are not needed any more
            with current(self._draws.device):
                self._draws.send([int(self._slots[each.row]) for each in self.answers])
                self._result = self._draw()
        return self._result

    def get(self) -> Sampled:
        """Wait for the tokens; the matchers advance when they are there."""
        if self._sampled is None:
            self._sampled = self.draw().get()
            self._sampled.faults = accept(self.answers, self._sampled.tokens.tolist())
            self.taken_in = True
            self._draws.follow(self)
        return self._sampled
