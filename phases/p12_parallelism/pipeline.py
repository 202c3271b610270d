"""A stage of a pipeline: it takes rows from the stage before it, runs its own layers, and passes them on.

The last stage draws, and sends the tokens to all stages, since each has a scheduler that must know them. Nobody waits
for them at once: a stage runs other micro-batches first, and asks for these tokens when the same one comes round again.
"""

from dataclasses import dataclass

import torch

from gradus.attention.batch import Batch
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Sampled
from gradus.engine.sequence import Output
from gradus.execution.layout import sampled_rows
from gradus.execution.result import StepResult
from gradus.sampling.sampler import Drawn
from phases.p00_baseline.runner import ModelRunner
from phases.p12_parallelism.exchange import Exchange, Sent


@dataclass(frozen=True, slots=True)
class Coming:
    """Tokens that the last stage will send. rows: how many this stage has computed."""

    plan: Plan
    rows: int
    count: int
    exchange: Exchange

    def get(self) -> Sampled:
        """Wait for the tokens."""
        place, tokens = self.exchange.place, torch.empty(self.count, dtype=torch.int64)
        if self.count:
            self.exchange.receive(tokens, place.peer(place.stages - 1))
        return StepResult.of(self.plan, self.rows, Drawn(tokens), tokens.device).get()


class StageRunner(ModelRunner):
    """Takes the place of a phase's runner, with the same model, cache and sampler."""

    def __init__(self, runner: ModelRunner, exchange: Exchange) -> None:
        super().__init__(runner.model, runner.attention, runner.sampler)
        self.exchange, self.place = exchange, exchange.place
        self.sent: list[Sent] = []

    def _run(self, plan: Plan) -> StepResult | Coming:  # type: ignore[override]
        batch = self.prepare(plan)
        hidden = self.layers(batch)
        self.settle()  # what was sent has arrived, or this micro-batch would not be here again
        rows = sampled_rows(batch)
        if not self.place.last:
            self.sent = [self.exchange.send(hidden, self.place.peer(self.place.stage + 1))]
            return Coming(plan, len(hidden), len(rows), self.exchange)
        logits = self.model.logits(self.model.norm(hidden)[batch.logits_rows])
        self.sampler.admit(plan.admissions)
        drawn = self.sampler.sample(logits, rows)
        others = range(self.place.stages - 1) if len(rows) else ()
        self.sent = [self.exchange.send(drawn.tokens, self.place.peer(stage)) for stage in others]
        return StepResult.of(plan, len(hidden), drawn, self.model.device)

    def settle(self) -> None:
        """Wait until what this stage has sent is with its receivers."""
        while self.sent:
            self.sent.pop().wait()

    def layers(self, batch: Batch) -> torch.Tensor:
        """The hidden states behind this stage's layers, [N, D]."""
        model = self.model
        self.attention.prepare(batch)
        if self.place.stage == 0:
            x = model.embed(batch.token_ids, batch.positions)
        else:
            rows = torch.empty(len(batch.token_ids), model.config.hidden_size, dtype=model.dtype)
            x = self.exchange.receive(rows, self.place.peer(self.place.stage - 1))
        return model.run_layers(x, batch.positions, self.attention)


def turn(engine: Engine) -> list[Output]:
    """`Engine.step` in another order: first commit what was launched in the last round, then launch the next step."""
    outputs: list[Output] = []
    if engine.in_flight:
        outputs += engine.scheduler.commit(*engine.in_flight.popleft())
    plan = engine.scheduler.schedule()
    if plan is not None:
        engine.in_flight.append((plan, engine.runner.run(plan)))
    return outputs
