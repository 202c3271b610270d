"""A model of a model: its keys and values are the tokens themselves, kept in pages exactly as the plans say.

The next token follows from every token that the newest one sees, read through the block table. So it is wrong as soon
as a page is missing, stale, shared with somebody else, or used after it was given back; and what is right needs no
engine to compute. No torch.
"""

import hashlib
from dataclasses import dataclass, field

from gradus.engine.plan import UNKNOWN, Plan, Sampled
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import SpanResult
from tests.cache.memory import updated

VOCABULARY = 1000
LIMITS = ModelLimits(VOCABULARY, 4096)


def ask(name: str, prompt: list[int] | int, answer: int, n: int = 1, **scheduling) -> Request:
    """A request of `answer` tokens; a prompt given as a number is that many tokens that only this request has."""
    tokens = own_prompt(name, prompt) if isinstance(prompt, int) else prompt
    params = SamplingParams(max_tokens=answer, n=n, seed=0)
    return Request.create(name, tokens, params, LIMITS, SchedulingParams(**scheduling))


def own_prompt(name: str, length: int) -> list[int]:
    return [_number(name, position) for position in range(length)]


def expected(request: Request, index: int = 0) -> tuple[int, ...]:
    """What the request must get, from its own tokens alone."""
    tokens = list(request.prompt)
    while len(tokens) < request.longest:
        tokens.append(_number(request.seed_of(index), *tokens))
    return tuple(tokens[len(request.prompt) :])


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()) % VOCABULARY


class VirtualClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Done:
    """A step that has run. It counts its rows as the engine wants them."""

    rows: int
    sampled: Sampled

    def get(self) -> Sampled:
        return self.sampled


@dataclass
class Replica:
    """Runs plans. clock: each step takes `step_s` of it. broken: ids of requests whose next logits are not finite."""

    page_size: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    step_s: float = 1.0
    windows: tuple[int | None, ...] = (None,)
    broken: set[str] = field(default_factory=set)
    memory: dict[int, int] = field(default_factory=dict)  # row of the pool → token
    tables: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)  # slot → block tables
    owners: dict[int, Request] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # slot → the newest token sampled in it
    plan: Plan | None = None  # the newest

    def run(self, plan: Plan) -> Done:
        self.plan = plan
        self.clock.now += self.step_s
        for admission in plan.admissions:
            self.owners[admission.slot] = admission.request
            self.seeds[admission.slot] = admission.request.seed_of(admission.index)
            self.tables.pop(admission.slot, None)
            self.last.pop(admission.slot, None)
        for page in plan.wiped:
            for offset in range(self.page_size):
                self.memory.pop(page * self.page_size + offset, None)
        spans = plan.expanded()
        slots = [span.slot for span in spans]
        assert len(set(slots)) == len(slots), "two spans in one slot"
        for span in spans:
            self.tables[span.slot] = updated(self.tables.get(span.slot, ()), span.pages)
            for position, token in enumerate(span.tokens, span.start):
                token = self.last[span.slot] if token == UNKNOWN else token
                for group in range(len(self.windows)):
                    self.memory[self._row(span.slot, group, position)] = token
        results = [self._sample(span.slot, span.start + len(span.tokens), span.logits) for span in spans]
        return Done(plan.tokens, Sampled.of(plan, results))

    def _row(self, slot: int, group: int, position: int) -> int:
        page = self.tables[slot][group][position // self.page_size]
        assert page > 0, f"position {position} of slot {slot} has no page"
        return page * self.page_size + position % self.page_size

    def _sample(self, slot: int, length: int, logits: int) -> SpanResult:
        if not logits:
            return SpanResult()
        if self.owners[slot].id in self.broken:
            return SpanResult(error="the model gave no finite logit to choose from")
        read = [self._read(slot, group, window, length) for group, window in enumerate(self.windows)]
        whole = max(read, key=len)
        assert all(whole[len(whole) - len(seen) :] == seen for seen in read), "two groups store different tokens"
        self.last[slot] = _number(self.seeds[slot], *whole)
        return SpanResult((self.last[slot],))

    def _read(self, slot: int, group: int, window: int | None, length: int) -> list[int]:
        first = 0 if window is None else max(0, length - window)
        return [self.memory[self._row(slot, group, position)] for position in range(first, length)]
