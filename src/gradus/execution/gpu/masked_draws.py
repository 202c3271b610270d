"""Draws the tokens of steps with masked rows, once the tokens before them are known.

A grammar's mask depends on the newest token, and the step before is still drawing that token when a step is launched.
The step therefore launches the model's pass alone, and its draw follows when the step before has arrived:

    host    launch model k+1 │ wait for tokens k │ matchers advance, threads fill the masks │ launch draw k+1 │ …
    GPU          draw k      │ model k+1 ─────────────────────────────────────────────────────│ draw k+1        │

The masks are filled and copied while the model runs, so the GPU waits for them only if that takes longer than the
model. The runner launches a pending draw before anything else of the next step, and a step's result does so if it is
asked for first.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradus.device.transfer import Staging, current
from gradus.engine.plan import Column, Sampled
from gradus.execution.result import StepResult
from gradus.sampling.constraints import Constrained, Constraints
from gradus.sampling.slots import SlotTable


class MaskedDraws:
    """Holds back the draws of steps with masked rows.

    table: the sampler's, whose masks the draws read. slots: how many sequences run at once.
    """

    def __init__(self, constraints: Constraints, table: SlotTable, slots: int) -> None:
        self.constraints, self.table, self.device = constraints, table, table.device
        self._masks = table.allocate_masks()
        self._staging = Staging((slots, self._masks.shape[1]), torch.int32, self.device)
        self._copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._copied = torch.cuda.Event() if self._copies is not None else None
        self._newest: MaskedStep | None = None
        # the masked answers of the newest step by their slots, and those rows of the table
        self._slots: Column | None = None
        self._changes = -1
        self._answers: list[Constrained] = []
        self._rows: list[Tensor] = []

    def masked(self, slots: Column) -> bool:
        """Whether any of these slots has a mask."""
        return bool(self.table.masked[slots].any())

    def hold(self, slots: Column, rows: int, draw: Callable[[], StepResult]) -> "MaskedStep":
        """Hold back the draw of a step whose model has been launched. slots: of its rows that get tokens."""
        if slots is not self._slots or self.constraints.changes != self._changes:  # else the same as in the step before
            self._slots, self._changes = slots, self.constraints.changes
            self._answers = self.constraints.of(slots.tolist())
            self._rows = [self._masks[run] for run in runs([int(slots[each.row]) for each in self._answers])]
        before = self._newest if self._newest is not None and not self._newest.taken_in else None
        self._newest = MaskedStep(self, self._answers, self._rows, rows, draw, before)
        if before is None:
            self.fill(self._newest)
        return self._newest

    # -- for the steps -------------------------------------------------------------------------------------------------

    def follow(self, step: "MaskedStep") -> None:
        """The tokens of `step` are known: fill the masks of the step after it."""
        if self._newest is not None and self._newest.before is step:
            self.fill(self._newest)

    def fill(self, step: "MaskedStep") -> None:
        """Begin to fill the masks of a step, whose matchers have taken in all earlier tokens."""
        self.constraints.fill(step.answers, self._staging.fill())

    def send(self, targets: Sequence[Tensor]) -> None:
        """Wait for the masks, and copy them to rows of the table while the model runs.

        Nothing reads these rows meanwhile: matchers have the tokens of every earlier step with masks, so it is over.
        """
        self.constraints.threads.wait()
        if self._copies is None or self._copied is None:
            self._staging.send(*targets)
            return
        with torch.cuda.stream(self._copies):
            self._staging.send(*targets)
            self._copied.record(self._copies)
        self._copied.wait(torch.cuda.current_stream(self.device))


class MaskedStep:
    """The result of a step with masked rows. rows: as in `Result`. taken_in: whether matchers have its tokens.

    before: the step whose tokens its masks wait for.
    """

    def __init__(
        self,
        draws: MaskedDraws,
        answers: Sequence[Constrained],
        targets: Sequence[Tensor],
        rows: int,
        draw: Callable[[], StepResult],
        before: "MaskedStep | None",
    ) -> None:
        self.answers, self.rows, self.before, self.taken_in = answers, rows, before, False
        self._draws, self._targets = draws, targets
        self._draw: Callable[[], StepResult] | None = draw
        self._result: StepResult | None = None
        self._sampled: Sampled | None = None

    @torch.inference_mode()
    def draw(self) -> StepResult:
        """Launch the draw, unless it has been."""
        if self._draw is not None:
            if self.before is not None:
                self.before.get()
                self.before = None  # its results are not needed any more
            with current(self._draws.device):
                self._draws.send(self._targets)
                self._result = self._draw()
            self._draw = None  # nor are the logits
        assert self._result is not None
        return self._result

    def get(self) -> Sampled:
        """Wait for the tokens; the matchers advance when they are there."""
        if self._sampled is None:
            self._sampled = self.draw().get()
            self._sampled.faults = self._draws.constraints.accept(self.answers, self._sampled.tokens.tolist())
            self.taken_in = True
            self._draws.follow(self)
        return self._sampled


def runs(slots: Sequence[int]) -> list[slice]:
    """Join neighbors among slots in ascending order."""
    found: list[slice] = []
    for slot in slots:
        if found and found[-1].stop == slot:
            found[-1] = slice(found[-1].start, slot + 1)
        else:
            found.append(slice(slot, slot + 1))
    return found
