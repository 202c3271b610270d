"""Counts what each rank reads and exchanges, in its order: in weights and bytes, and not in seconds.

The ranks are threads that really compute and exchange, but no clock is read. So the result is the same on any machine,
however busy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output
from gradus.loading import load_model, open_checkpoint
from gradus.models import Linear
from phases.p12_parallelism import rank
from phases.p12_parallelism.exchange import PATIENCE_S, Exchange, Sent
from phases.p12_parallelism.place import Place
from phases.p12_parallelism.threads import on_all_ranks

COMPUTES, GATHER, SEND, RECEIVE = "computes", "gather", "send", "receive"


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a rank did. kind: COMPUTES, GATHER, SEND or RECEIVE. matrices: role and layer of each that it
    read. weights: how many those have. size: bytes that the rank gave away. to: the other rank of SEND and
    RECEIVE. step, micro_batch: of the engine's step, from 0 on."""

    kind: str
    step: int
    micro_batch: int
    matrices: tuple[tuple[str, int], ...] = ()
    weights: int = 0
    size: int = 0
    to: int | None = None


class CountedExchange(Exchange):
    """Writes down what its rank reads and exchanges. A matrix counts once per step, however many rows it meets."""

    def __init__(self, path: str, place: Place, patience_s: float = PATIENCE_S) -> None:
        super().__init__(path, place, patience_s)
        self.acts: list[Act] = []
        self.read: list[Linear] = []
        self.step = self.micro_batch = self.first = 0  # first: this stage's first layer

    def gather(self, x: Tensor) -> Tensor:
        if self.place.parts > 1:
            self.act(GATHER, size=x.nbytes)
        return super().gather(x)

    def send(self, x: Tensor, rank: int) -> Sent:
        self.act(SEND, size=x.nbytes, to=rank)
        return super().send(x, rank)

    def receive(self, x: Tensor, rank: int) -> Tensor:
        self.act(RECEIVE, to=rank)
        return super().receive(x, rank)

    def act(self, kind: str, **found: Any) -> None:
        self.computed()
        self.acts.append(Act(kind, self.step, self.micro_batch, **found))

    def computed(self) -> None:
        """Write down the matrices that were read since the last exchange."""
        if self.read:
            names = tuple((each.matrix_id.role, self.first + (each.matrix_id.layer or 0)) for each in self.read)
            weights = sum(each.weight.numel() for each in self.read)
            self.acts.append(Act(COMPUTES, self.step, self.micro_batch, names, weights))
            self.read.clear()

    def watch(self, engine: Engine, micro_batch: int) -> None:
        """Count the steps of an engine, and what its model reads in them."""
        runner: Any = engine.runner
        run, commit, steps = runner.run, engine.scheduler.commit, count()

        def counted(plan: Plan) -> Result:
            self.step, self.micro_batch = next(steps), micro_batch
            result: Result = run(plan)
            self.computed()
            return result

        def committed(plan: Plan, result: Result) -> Sequence[Output]:
            self.micro_batch = micro_batch  # tokens of this one are waited for
            return commit(plan, result)

        runner.run, engine.scheduler.commit = counted, committed  # type: ignore[method-assign]
        for module in runner.model.modules():
            if isinstance(module, Linear) and micro_batch == 0:  # all engines of a rank share its model
                setattr(module, "forward", self.noting(module))  # noqa: B010  # mypy knows no method that is replaced

    def noting(self, matrix: Linear) -> Callable[[Tensor], Tensor]:
        """The matrix's product, which also says that it was read."""
        multiply = matrix.forward

        def noted(x: Tensor) -> Tensor:
            self.read.append(matrix)
            return multiply(x)

        return noted


def acts(
    model: str,
    parts: int,
    stages: int,
    micro_batches: int,
    requests: int,
    tokens: int,
    engines: Callable[..., list[Engine]] = rank.engines,
) -> list[list[Act]]:
    """Let ranks answer `requests` prompts of one token with `tokens` each. Returns what each rank did, in its order.

    engines: makes a rank's engines; a student's may. Raises ConfigError for a model that cannot be cut so.
    """
    whole = load_model(open_checkpoint(model), dtype=torch.float32, device="cpu")
    limits = ModelLimits(whole.config.vocab_size, tokens + 2, ())
    params = SamplingParams(max_tokens=tokens)
    asked = [Request.create(f"{number}", (number + 1,), params, limits) for number in range(requests)]

    def compute(exchange: CountedExchange) -> list[Act]:
        made = engines(whole, exchange, "p03", micro_batches)
        exchange.first = exchange.place.layers(whole.config.num_layers).start
        for micro_batch, engine in enumerate(made):
            exchange.watch(engine, micro_batch)
        rank.answers(made, asked)
        return exchange.acts

    return on_all_ranks(compute, parts, stages, CountedExchange)
