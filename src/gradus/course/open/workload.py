"""Requests from a seed, run to their ends by a reader's engine. Every token is verified.

    model = small_model(seed)
    played = play(yours.build, model, options(model, max_sequences=8), asks)

Weights and prompts follow from the seed, so no answer is known in advance. A token is right if it is the likeliest
after the tokens before it, computed by p00's attention from the whole text, with the same log-probability.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.course.open.declaration import Refused
from gradus.course.open.meter import Meter
from gradus.course.probe import EngineProbe, Step
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output
from gradus.models import SHAPES, Model, create_model, randomize

Build = Callable[[Model, EngineOptions], Engine]

CLOSE = 1e-3  # nats: sums in another order differ by some millionths, numbers of 16 bits by more than this
MOST_STEPS = 5000
CONTEXT = 512
VOCABULARY = 272  # bytes and some more: no other matrix of the small models has as many rows


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. tokens: of its answer, which no stop token ends earlier. at: the step before which it arrives."""

    name: str
    prompt: tuple[int, ...]
    tokens: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One step as it was measured. rows: computed by the layers. step: of the probe. given: tokens by request.

    live, peak: bytes of tensors, the model's own not included, that are alive after the step, and at most during it.
    """

    rows: float
    step: Step | None
    given: dict[str, int]
    live: int
    peak: int


@dataclass(slots=True)
class Played:
    """A run. steps: all of them. answers: by request, tokens and their log-probabilities (None if not asked for).
    arrived: the number of steps before each request came. An idle engine gets the next one at once."""

    steps: list[Seen] = field(default_factory=list)
    answers: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> float:
        return sum(step.rows for step in self.steps)

    def when(self, name: str) -> list[int]:
        """The numbers of the steps that gave the request its tokens, one for each token."""
        return [number for number, step in enumerate(self.steps) for _ in range(step.given.get(name, 0))]


def small_model(seed: int, layers: int = 2, shape: str = "tiny-llama") -> Model:
    """Random float32 weights of a few layers, drawn so widely that greedy choices are clear."""
    model = create_model(replace(SHAPES[shape].stage(range(layers)), vocab_size=VOCABULARY))
    randomize(model, seed=seed, std=0.1)
    return model


def options(model: Model, **settings: Any) -> EngineOptions:
    return EngineOptions(ModelLimits(model.config.vocab_size, CONTEXT), **settings)


def prompt(random: Random, length: int) -> tuple[int, ...]:
    """Random tokens without the model's special ones."""
    return tuple(random.choices(range(256), k=length))


def play(build: Build, model: Model, settings: EngineOptions, asks: Sequence[Ask], *, storage: bool = False) -> Played:
    """Run all requests, each from its step on, and verify their tokens. Raises Refused.

    storage: also count bytes.
    """
    played, meter = Played(answers={ask.name: [] for ask in asks}), Meter(model, storage=storage)
    with meter:
        engine = build(model, settings)
    probe, waiting = EngineProbe(engine, kept=1), sorted(asks, key=lambda ask: ask.at)
    probe.record()
    number = 0
    while waiting or engine.has_work:
        while waiting and (waiting[0].at <= number or not engine.has_work):
            ask = waiting.pop(0)
            engine.submit(request(ask, settings.limits))
            played.arrived[ask.name] = number
        played.steps.append(step(engine, probe, meter, played))
        number += 1
        if number == MOST_STEPS:
            raise Refused(f"after {MOST_STEPS} steps there is still work to do: {unfinished(asks, played)}")
    probe.stop()
    verify(model, asks, played.answers)
    return played


def unfinished(asks: Sequence[Ask], played: Played) -> str:
    """Name the first request whose answer is not complete, and say how far it is."""
    ask = next(ask for ask in asks if len(played.answers[ask.name]) < ask.tokens)
    return f"{ask.name} (a prompt of {len(ask.prompt)} tokens) has {len(played.answers[ask.name])} of {ask.tokens}"


def request(ask: Ask, limits: ModelLimits) -> Request:
    params = SamplingParams(max_tokens=ask.tokens, ignore_eos=True, logprobs=0)
    return Request.create(ask.name, list(ask.prompt), params, limits)


def step(engine: Engine, probe: EngineProbe, meter: Meter, played: Played) -> Seen:
    before, meter.peak = meter.rows, meter.live
    with meter, torch.inference_mode():
        outputs = engine.step()
    planned, given = (probe.steps.pop() if probe.steps else None), {}
    for name, tokens in taken(outputs):
        played.answers[name] += tokens
        given[name] = len(tokens)
    return Seen(meter.rows - before, planned, given, meter.live, meter.peak)


def taken(outputs: Sequence[Output]) -> Iterator[tuple[str, list[tuple[int, float | None]]]]:
    for output in outputs:
        if output.error is not None:
            raise Refused(f"{output.request_id} ended with an error: {output.error}")
        if len(output.logprobs) != len(output.tokens):
            raise Refused(f"{output.request_id} got tokens without the log-probabilities that it asks for")
        pairs = zip(output.tokens, output.logprobs, strict=True)
        yield output.request_id, [(token, logprob.logprob) for token, logprob in pairs]


# -- the oracle ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def verify(model: Model, asks: Sequence[Ask], answers: Mapping[str, Sequence[tuple[int, float | None]]]) -> None:
    """Raises Refused at the first token that is not the model's. answers: as `Played` has them."""
    recompute = phases.find("p00").module("no_cache").Recompute
    for ask in asks:
        answer = answers[ask.name]
        if len(answer) != ask.tokens:
            raise Refused(f"{ask.name} got {len(answer)} tokens, and asked for {ask.tokens}")
        text = [*ask.prompt, *(token for token, _ in answer)][:-1]
        hidden = model(torch.tensor(text), torch.arange(len(text)), recompute(model.config))
        wanted = model.logits(hidden[len(ask.prompt) - 1 :]).log_softmax(dim=-1)
        for place, (token, logprob) in enumerate(answer):
            compare(ask.name, place, wanted[place], token, logprob)


def compare(name: str, place: int, wanted: torch.Tensor, token: int, logprob: float | None) -> None:
    best = int(wanted.argmax())
    if not 0 <= token < len(wanted) or float(wanted[best] - wanted[token]) > CLOSE:
        raise Refused(f"token {place + 1} of {name} is {token}, and the model says {best}")
    if logprob is not None and abs(float(wanted[token]) - logprob) > CLOSE:
        raise Refused(
            f"token {place + 1} of {name} is right, but its log-probability is {logprob:.4f} where the model has "
            f"{float(wanted[token]):.4f}: something was rounded"
        )
