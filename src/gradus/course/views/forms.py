"""A prompt that is answered freely, and then in a form: the work of p11's demo, and what each mask left.

The phase that keeps to no form answers the same prompt as it likes. So the two answers show what the form did to the
text, and their times what the masks cost.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradus.bench.contenders.workbench import Workbench
from gradus.bench.measure.drive import Run
from gradus.bench.statistics import median
from gradus.bench.workloads import Arrival
from gradus.course.xray import runs
from gradus.course.xray.choices import Choice, MaskWatch
from gradus.course.xray.recording import Arrival as Asked
from gradus.course.xray.recording import request
from gradus.engine.engine import Engine
from gradus.loading import Tokenizer

WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Form:
    """One request. prompt: its text. structured: what the answer must be. most: the most tokens of an answer."""

    prompt: str
    structured: Mapping[str, Any]
    most: int

    @property
    def what(self) -> str:
        return f"one request, at most {self.most} tokens out, freely and in a form"

    def digest(self) -> str:
        """A hash of the work; equal digests mean equal work."""
        fields = json.dumps([self.prompt, dict(self.structured), self.most])
        return hashlib.sha256(fields.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: its tokens, when each came, and what each could be chosen from; () without a form."""

    run: Run
    tokens: Sequence[int]
    choices: Sequence[Choice]

    @property
    def token_ms(self) -> float:
        """The usual time from one token to the next."""
        (times,) = self.run.token_times
        return 1e3 * median([later - earlier for earlier, later in pairwise(times)])


def answer(name: str, form: Form, bench: Workbench) -> Answered:
    """Answer in the named phase, in the form if it keeps to forms: once for the times, and once more for the choices.

    The times include no observer. A few tokens warm the engine up.
    """
    tokenizer = words_of(bench)
    prompt = tuple(tokenizer.encode(form.prompt))
    engine, _ = runs.engine_of(name, bench, len(prompt) + form.most, {})
    _answer(engine, Asked("warm-up", prompt, WARM_TOKENS))
    asked = Asked("answer", prompt, form.most, whole=False, structured=form.structured)
    tokens, times = _answer(engine, asked)
    run = Run([Arrival(0.0, prompt, len(tokens))], [times])
    if not engine.limits.structured:
        return Answered(run, tokens, ())
    watch = MaskWatch(engine)
    _answer(engine, asked)
    choices = [choice for _, choice in watch.draws]
    return Answered(run, tokens, choices[: len(tokens)])  # further draws were made in vain: see p10


def _answer(engine: Engine, asked: Asked) -> tuple[list[int], list[float]]:
    """Run a request alone. Returns its tokens, and when each came, in seconds."""
    tokens: list[int] = []
    times: list[float] = []
    start = time.perf_counter()
    engine.submit(request(asked, engine.limits))
    while engine.has_work:
        new = [token for output in engine.step() for token in output.tokens]
        tokens += new
        times += [time.perf_counter() - start] * len(new)
    return tokens, times


def words_of(bench: Workbench) -> Tokenizer:
    return bench.checkpoint.tokenizer or Tokenizer.of_bytes()


def transcript(free: Answered, formed: Answered, words: Tokenizer) -> str:
    """Show both answers, what the mask of each token left, and what a token took. A token left alone is forced."""

    def text(tokens: Sequence[int]) -> str:
        return repr(words.decode(tokens, skip_special=False))

    lines = [f"freely:    {text(free.tokens)}", f"in a form: {text(formed.tokens)}", ""]
    lines.append(f"may come  probability  {'drawn':14}{'freely':14}the likeliest that may come")
    for choice in formed.choices:
        drawn, freely = text([choice.drawn]), text([choice.freely])
        left = "forced" if choice.legal == 1 else " ".join(text([token]) for token in choice.likeliest)
        lines.append(f"{choice.legal:8,}  {choice.probability:11.2%}  {drawn:14}{freely:14}{left}")
    costs = f"{free.token_ms:.3g} ms freely and {formed.token_ms:.3g} ms in the form (medians of this run)"
    return "\n".join([*lines, "", f"A token took {costs}."])
