"""Draws the tokens of steps whose answers keep to a grammar.

A grammar's mask depends on the newest token, and the step before is still drawing that token when a step is launched.
A step with masked rows therefore launches the model's pass alone, and its draw follows when the step before has
arrived:

    host    launch model k+1 │ wait for tokens k │ matchers advance, threads fill the masks │ launch draw k+1 │ …
    GPU          draw k      │ model k+1 ─────────────────────────────────────────────────────│ draw k+1        │

The masks are filled and copied while the model runs, so the GPU waits for them only if that takes longer than the
model. The runner launches a pending draw before anything else of the next step, and a step's result does so if it is
asked for first.

An answer that is free up to its next call (`gradus.structured.lazy`) needs no mask until then, and its steps are
launched whole. The host learns one step late that a call has begun:

    host    launch step k+1 │ wait for tokens k: a call begins │ wait for tokens k+1 │ draw this row of k+1 again │ …
    GPU         step k      │ step k+1 ────────────────────────│                     │ one row, with its mask     │

The token that k+1 drew for the answer does not count. The row goes through the model once more, with its mask, before
the next step is launched: some milliseconds, once per call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradus.device.transfer import Staging, current
from gradus.engine.plan import REJECTED, Column, Sampled
from gradus.execution.result import StepResult
from gradus.sampling.constraints import Constrained, Constraints
from gradus.speculative.history import History

if TYPE_CHECKING:  # Triton is not everywhere
    from gradus.sampling.kernel_sampler import KernelSampler

DrawAgain = Callable[[Sequence[Constrained]], Sampled]
"""Runs these answers' rows once more, draws with masks, and returns a token per answer."""


class MaskedDraws:
    """Fills the masks of steps, and sends them to the sampler's table.

    sampler: its table has the masks that draws read. history: the tokens that steps have appended. slots: how many
    sequences run at once.
    """

    def __init__(self, constraints: Constraints, sampler: "KernelSampler", history: History, slots: int) -> None:
        self.constraints, self.sampler, self.device = constraints, sampler, sampler.device
        self.history = history
        self._masks = sampler.table.allocate_masks()
        self._staging = Staging((slots, self._masks.shape[1]), torch.int32, self.device)
        self._copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._copied = torch.cuda.Event() if self._copies is not None else None
        self._targets: list[Tensor] = []  # where the masks that are being filled go
        # the answers of the newest step, whose slots are the same array in step after step
        self._slots: Column | None = None
        self._changes = -1
        self._answers: list[Constrained] = []

    def watch(
        self, slots: Column, rows: int, drawn: StepResult | Callable[[], StepResult], draw_again: DrawAgain
    ) -> "StepResult | ConstrainedStep":
        """Watch a step's answers that keep to a grammar. slots: of the rows that get tokens. drawn: the step, or the
        draw that it holds back. rows, draw_again: as in ConstrainedStep."""
        answers = self.answers(slots)
        if not isinstance(drawn, StepResult):
            return ConstrainedStep(self, answers, rows, draw_again, draw=drawn)
        return ConstrainedStep(self, answers, rows, draw_again, result=drawn) if answers else drawn

    def answers(self, slots: Column) -> list[Constrained]:
        """List the answers that keep to a grammar among these slots, of the rows that get tokens."""
        if slots is not self._slots or self.constraints.changes != self._changes:
            self._slots, self._changes = slots, self.constraints.changes
            self._answers = self.constraints.of(slots.tolist())
        return self._answers

    def masked(self, answers: Sequence[Constrained]) -> list[Constrained]:
        """Choose the answers that are drawn with masks."""
        table = self.sampler.table
        return [each for each in answers if table.masked[each.slot]]

    def take_begun(self, slots: Collection[int]) -> dict[int, tuple[int, int]]:
        """Take the answers that have begun to need masks, as in `Constraints.begun`.

        slots: of the newest step. In other slots, the surplus is taken back at once.
        """
        begun = dict(self.constraints.begun)
        self.constraints.begun.clear()
        self.rewind({slot: found for slot, found in begun.items() if slot not in slots and found[1]})
        return {slot: found for slot, found in begun.items() if slot in slots}

    def rewind(self, surplus: Mapping[int, tuple[int, int]]) -> None:
        """Take back tokens that do not count. surplus: by slot, the newest token that does, and how many follow it."""
        if surplus:
            newest, counts = zip(*surplus.values(), strict=True)
            self.history.rewind([*surplus], counts, newest)

    def fill(self, answers: Sequence[Constrained]) -> None:
        """Begin to fill the masks of answers whose matchers have taken in all earlier tokens."""
        self._targets = [self._masks[run] for run in runs([each.slot for each in answers])]
        self.constraints.fill(answers, self._staging.fill())

    def send(self) -> None:
        """Wait for the masks, and copy them to rows of the table while the model runs.

        Nothing reads these rows meanwhile: matchers have the tokens of every earlier step with masks, so it is over.
        """
        self.constraints.threads.wait()
        if self._copies is None or self._copied is None:
            self._staging.send(*self._targets)
            return
        with torch.cuda.stream(self._copies):
            self._staging.send(*self._targets)
            self._copied.record(self._copies)
        self._copied.wait(torch.cuda.current_stream(self.device))


class ConstrainedStep:
    """A step with answers that keep to a grammar: drawn when it was launched (result), or held back for masks (draw).

    answers: of its rows that get tokens. rows: as in `Result`. draw_again: see DrawAgain.

    The runner calls `begin` when all earlier steps have arrived, and `settle` before it launches the next one.
    """

    def __init__(
        self,
        draws: MaskedDraws,
        answers: Sequence[Constrained],
        rows: int,
        draw_again: DrawAgain,
        *,
        result: StepResult | None = None,
        draw: Callable[[], StepResult] | None = None,
    ) -> None:
        self.answers, self.rows = answers, rows
        self._draws, self._draw_again = draws, draw_again
        self._result, self._draw = result, draw
        self._masked: list[Constrained] = []
        self._surplus: dict[int, tuple[int, int]] = {}  # as `Constraints.begun`: of rows that are to be drawn again
        self._sampled: Sampled | None = None

    def begin(self) -> None:
        """Fill the masks, if it waits for them, and find the rows for which a call began in the step before."""
        begun = self._draws.take_begun({each.slot for each in self.answers})
        held, self._masked = self._draw is not None, self._draws.masked(self.answers)
        self._surplus = {slot: found for slot, found in begun.items() if found[1] or not held}
        if held:
            self._draws.fill(self._masked)

    @property
    def repeats(self) -> bool:
        """Whether rows of it are still to be run and drawn again."""
        return bool(self._surplus) and self._sampled is None

    @torch.inference_mode()
    def settle(self) -> None:
        """Launch the draw, if it was held back, and draw again the rows that need it."""
        self._drawn()
        if self._surplus:
            self.get()

    def _drawn(self) -> StepResult:
        if self._draw is not None:
            with current(self._draws.device):
                self._draws.send()
                self._result = self._draw()
            self._draw = None  # nor are the logits needed any more
        assert self._result is not None
        return self._result

    @torch.inference_mode()
    def get(self) -> Sampled:
        """Wait for the tokens; the matchers advance when they are there."""
        if self._sampled is None:
            self._sampled = sampled = self._drawn().get()
            if self._surplus:
                with current(self._draws.device):
                    self._replace(sampled)
            masked, constraints = {each.slot for each in self._masked}, self._draws.constraints
            sampled.faults = constraints.accept(self.answers, masked, sampled.tokens, sampled.width)
            self._draws.sampler.turn_masks()
        return self._sampled

    def _replace(self, sampled: Sampled) -> None:
        """Draw again what was drawn without a mask, or behind tokens that do not count."""
        late, tokens = [each for each in self._masked if each.slot in self._surplus], sampled.decoded
        late = [each for each in late if tokens[each.row, 0] >= 0]  # others have reached their end
        if not late:
            return
        surplus = {}
        for each in late:
            newest, count = self._surplus[each.slot]
            surplus[each.slot] = newest, count + int((tokens[each.row] >= 0).sum())
        self._draws.rewind(surplus)
        again = self._draw_again(late)
        sampled.logprobs = list(sampled.logprobs)
        for number, each in enumerate(late):
            tokens[each.row] = REJECTED
            tokens[each.row, 0] = again.tokens[number]
            if again.logprobs:
                sampled.logprobs[each.row * sampled.width] = again.logprobs[number]


def runs(slots: Sequence[int]) -> list[slice]:
    """Join neighbors among slots in ascending order."""
    found: list[slice] = []
    for slot in slots:
        if found and found[-1].stop == slot:
            found[-1] = slice(found[-1].start, slot + 1)
        else:
            found.append(slice(slot, slot + 1))
    return found
