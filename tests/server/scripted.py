"""A deterministic engine with an LLM's step-level interface, for tests that need faults and timing on cue.

Sample i of a prompt yields the tokens i, i + 1, i + 2, … as text "0 1 2 …", one token a step, `slots` samples at once,
first come first served. Validation is the real one; a request's time and its deadline are looked at before each step.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

from gradus.engine.engine import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Timings
from gradus.text.completion import Completion, Delta


@dataclass
class Sample:
    request: Request
    index: int
    arrived: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    first: float | None = None


class ScriptedLLM:
    """step_s: how long a step takes. piece: the text of a token after its number, to make answers large.

    `faults` maps a step's number (from 1) to an exception to raise in it; `hang` maps it to a duration; `poison` is a
    prompt token whose samples end with finish_reason "error"; `unbalanced` makes every self-check fail.
    """

    def __init__(
        self,
        *,
        slots=4,
        step_s=0.0,
        piece=" ",
        faults=None,
        hang=None,
        poison=None,
        unbalanced=False,
        context_length=4096,
    ):
        self.limits = ModelLimits(vocab_size=1000, context_length=context_length)
        self.checkpoint = SimpleNamespace(name="scripted")
        self.precision = SimpleNamespace(weights="torch.float32", activations="torch.float32")
        self.phase, self.device = "p99", "cpu"
        self.slots, self.step_s, self.piece = slots, step_s, piece
        self.faults, self.hang, self.poison = faults or {}, hang or {}, poison
        self.unbalanced, self.checks = unbalanced, 0
        self.waiting, self.running = deque(), []
        self.settings = {"max_sequences": slots}
        self.totals = Metrics()
        self.seen = []  # request ids in the order in which their first sample began
        self.spent = {}  # request id → steps that included it

    def submit(self, prompt, params, *, scheduling=None, request_id):
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        request = Request.create(request_id, tokens, params, self.limits, scheduling)
        self.totals.prompt_tokens += len(request.prompt)
        self.waiting.extend(Sample(request, index) for index in range(params.n))
        return request_id

    @property
    def has_work(self):
        return bool(self.waiting or self.running)

    def step(self):
        self.totals.steps += 1
        time.sleep(self.hang.get(self.totals.steps, self.step_s))
        if error := self.faults.get(self.totals.steps):
            raise error
        ended = self._expire()
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
            self.seen.append(self.running[-1].request.id)
        self.totals.batch_total += len(self.running)
        self.totals.max_batch = max(self.totals.max_batch, len(self.running))
        return ended + [self._advance(sample) for sample in list(self.running)]

    def check(self):
        self.checks += 1
        assert not self.unbalanced, "secret detail"

    def _expire(self):
        ended = []
        for sample in (*self.running, *self.waiting):
            age = time.perf_counter() - sample.arrived
            scheduling = sample.request.scheduling
            for reason, limit in (("timeout", scheduling.timeout), ("deadline", scheduling.deadline)):
                if limit is not None and age >= limit:
                    ended.append(self._end(sample, (), "", reason))
                    break
        return ended

    def cancel(self, request_id, reason="cancelled"):
        meant = [sample for sample in (*self.running, *self.waiting) if sample.request.id == request_id]
        return [self._end(sample, (), "", reason) for sample in meant]

    def metrics(self):
        metrics = Metrics(**{name: getattr(self.totals, name) for name in Metrics.__slots__})
        metrics.waiting, metrics.active = len(self.waiting), len(self.running)
        return metrics

    def _advance(self, sample):
        self.spent[sample.request.id] = self.spent.get(sample.request.id, 0) + 1
        if self.poison in sample.request.prompt:
            return self._end(sample, (), "", "error")
        token = sample.index + len(sample.tokens)
        sample.first = sample.first or time.perf_counter()
        sample.tokens.append(token)
        self.totals.generated_tokens += 1
        if len(sample.tokens) == sample.request.max_tokens:
            return self._end(sample, (token,), self._text(token), "length")
        return Delta(sample.request.id, 0, sample.index, self._text(token), (token,), ())

    def _end(self, sample, tokens, text, reason):
        (self.running if sample in self.running else self.waiting).remove(sample)
        self.totals.completed += reason == "length"
        self.totals.failed += reason == "error"
        self.totals.cancelled += reason in ("cancelled", "timeout", "deadline")
        now = time.perf_counter()
        completion = Completion(
            request_id=sample.request.id,
            prompt_index=0,
            index=sample.index,
            text="".join(self._text(token) for token in sample.tokens),
            token_ids=tuple(sample.tokens),
            logprobs=None,
            finish_reason=reason,
            stop_reason=None,
            prompt_tokens=len(sample.request.prompt),
            cached_tokens=0,
            timings=Timings(
                queued_s=0.0,
                ttft_s=sample.first and sample.first - sample.arrived,
                total_s=now - sample.arrived,
                tokens=len(sample.tokens),
            ),
            error="secret detail" if reason == "error" else None,
        )
        return Delta(sample.request.id, 0, sample.index, text, tokens, (), completion)

    def _text(self, token):
        return f"{token}{self.piece}"


def greedy(max_tokens, **fields):
    return SamplingParams(max_tokens=max_tokens, **fields)
