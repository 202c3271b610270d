"""The lessons' scene: three people share one model. Ann asks for a poem (a), Ben pastes a long text (b), and Cy has a
short question (c).

    for step in watch("p03", {"a": (3, 6), "b": (9, 3), "c": (2, 2)}, max_sequences=2):
        print(step)          # step 1    a (0, 3)   b (0, 9)

A phase's engine runs them, on tiny random weights. A step's spans depend only on lengths, so the steps are
the same on every machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.course.probe import EngineProbe, Step
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams

if TYPE_CHECKING:
    from gradus.models import Model

Asked = tuple[int | Sequence[int], int] | tuple[int | Sequence[int], int, int]
"""A prompt (its length, or its token ids), the tokens of the answer, and the step at which it arrives; 1 by default."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One step. spans: (start, count) of each sequence that it runs. filler: rows of padding.

    free: pages that no sequence refers to; None without pages. preempted: sequences that lost their place.
    """

    number: int
    spans: dict[str, tuple[int, int]]
    filler: int
    free: int | None
    preempted: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"step {self.number:<2}", *(f"{name} {span}" for name, span in self.spans.items())]
        parts += [f"+ {self.filler} filler"] if self.filler else []
        parts += [f"{name} preempted" for name in self.preempted]
        return "   ".join(parts)


def watch(phase: str, asked: Mapping[str, Asked], **settings: int) -> Iterator[Seen]:
    """Run the requests to their ends. settings: fields of EngineOptions, such as max_sequences or page_size."""
    wanted = {name: _request(name, *one[:2]) for name, one in asked.items()}
    arrivals = {name: one[2] if len(one) == 3 else 1 for name, one in asked.items()}
    longest = max(len(prompt) + output for prompt, output in wanted.values())
    limits = ModelLimits(_model().config.vocab_size, longest)
    engine = phases.load(phase).build(_model(), _options(limits, settings))
    probe = EngineProbe(engine)
    probe.record()
    number = 0
    while engine.has_work or any(at > number for at in arrivals.values()):
        number += 1
        for name, (prompt, output) in wanted.items():
            if arrivals[name] == number:
                params = SamplingParams(max_tokens=output, ignore_eos=True)
                engine.submit(Request.create(name, prompt, params, limits))
        if engine.has_work:
            yield _step(number, engine, probe)


def _options(limits: ModelLimits, settings: Mapping[str, Any]) -> EngineOptions:
    return EngineOptions(limits, **settings)


def _step(number: int, engine: Engine, probe: EngineProbe) -> Seen:
    before = engine.metrics().padding_rows
    engine.step()
    step: Step = probe.steps[-1]
    return Seen(
        number,
        {span.request_id: (span.start, span.count) for span in step.spans},
        engine.metrics().padding_rows - before,
        None if step.pages is None else step.pages.free + step.pages.idle,
        tuple(name for name, _ in step.preempted),
    )


def _request(name: str, prompt: int | Sequence[int], output: int) -> tuple[list[int], int]:
    """Make the prompt's token ids. Prompts given by their length have no token in common."""
    return ([ord(name)] * prompt if isinstance(prompt, int) else list(prompt)), output


@cache
def _model() -> "Model":
    import torch

    from gradus.loading import load_model, open_checkpoint

    return load_model(open_checkpoint("random:tiny-llama"), dtype=torch.float32, device="cpu")
