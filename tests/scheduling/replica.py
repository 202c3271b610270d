"""A model of a model: its keys and values are the tokens themselves, kept in pages exactly as the plans say.

The next token follows from every token that the newest one sees, read through the block table. So it is wrong as soon
as a page is missing, stale, shared with somebody else, or used after it was given back; and what is right needs no
engine to compute. No torch.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gradus.engine.plan import REJECTED, UNDRAFTED, UNKNOWN, Plan, Sampled, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import SpanResult
from tests.cache.memory import updated

VOCABULARY = 1000
LIMITS = ModelLimits(VOCABULARY, 4096)
EVEN = 64
"""The position at which a token costs twice as much as the first one."""


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


def oracle(seed: int, tokens: list[int], count: int) -> list[int]:
    """Drafts that are always right."""
    drafts: list[int] = []
    for _ in range(count):
        drafts.append(_number(seed, *tokens, *drafts))
    return drafts


def nonsense(seed: int, tokens: list[int], count: int) -> list[int]:
    return [(token + 1) % VOCABULARY for token in oracle(seed, tokens, count)]


def half_right(seed: int, tokens: list[int], count: int) -> list[int]:
    """Fewer drafts than there is room for, and some of them wrong."""
    drafts = oracle(seed, tokens, _number(seed, *tokens, 1) % (count + 1))
    return [draft if _number(seed, *tokens, at) % 3 else 0 for at, draft in enumerate(drafts)]


def nothing(seed: int, tokens: list[int], count: int) -> list[int]:
    return []


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
    """Runs plans. clock: each step takes `step_s` of it, and each token `row_s` times its cost. broken: ids of requests
    whose next logits are not finite.

    guess: what it drafts, of a slot's seed, all its tokens and how many to draft. How long a sequence is it knows by
    itself, as a device does, where the plan says how many positions may be stored.
    """

    page_size: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    step_s: float = 1.0
    row_s: float = 0.0
    windows: tuple[int | None, ...] = (None,)
    broken: set[str] = field(default_factory=set)
    memory: dict[int, int] = field(default_factory=dict)  # row of the pool → token
    tables: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)  # slot → block tables
    owners: dict[int, Request] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # slot → the newest token sampled in it
    lengths: dict[int, int] = field(default_factory=dict)  # slot → tokens, the newest included
    guess: Callable[[int, list[int], int], list[int]] = lambda seed, tokens, count: []
    plan: Plan | None = None  # the newest

    def run(self, plan: Plan) -> Done:
        self.plan = plan
        positions = [span.start + number for span in plan.expanded() for number in range(len(span.tokens))]
        self.clock.now += self.step_s + self.row_s * sum(1 + position / EVEN for position in positions)
        for admission in plan.admissions:
            self.owners[admission.slot] = admission.request
            self.seeds[admission.slot] = admission.request.seed_of(admission.index)
            self.tables.pop(admission.slot, None)
            self.last.pop(admission.slot, None)
        for page in plan.wiped:
            for offset in range(self.page_size):
                self.memory.pop(page * self.page_size + offset, None)
        slots = [span.slot for span in plan.expanded()]
        assert len(set(slots)) == len(slots), "two spans in one slot"
        decodes = plan.decodes
        drafts = decodes.drafts.tolist() or [0] * len(decodes)
        columns = zip(decodes.expanded(), decodes.limits.tolist(), drafts, strict=True)
        rows = [self._verify(span, limit, 1 + most, decodes.width) for span, limit, most in columns]
        for result in self._run(plan.spans):
            rows.append([-1] if result.error else list(result.tokens))
        tokens = np.array([token for row in rows for token in row], np.int64)
        return Done(plan.tokens, Sampled(tokens, [span.logits for span in plan.spans], width=decodes.width))

    def _run(self, spans: list[Span]) -> list[SpanResult]:
        for span in spans:
            self.tables[span.slot] = updated(self.tables.get(span.slot, ()), span.pages)
            for position, token in enumerate(span.tokens, span.start):
                token = self.last[span.slot] if token == UNKNOWN else token
                for group in range(len(self.windows)):
                    self.memory[self._row(span.slot, group, position)] = token
        return [self._sample(span.slot, span.start + len(span.tokens), span.logits) for span in spans]

    def _verify(self, span: Span, limit: int, most: int, width: int) -> list[int]:
        """Run the newest token and drafts as far as they are right, and store wrong ones too."""
        slot, length = span.slot, self.lengths[span.slot]
        self.tables[slot] = updated(self.tables.get(slot, ()), span.pages)
        assert span.start <= length - 1 or length > limit, "it is shorter than the plan takes it for"
        room = limit - (length - 1)
        if room <= 0:
            return [UNDRAFTED] * width
        known = (
            [self.memory[self._row(slot, len(self.windows) - 1, p)] for p in range(length - 1)]
            if (self.windows == (None,))
            else []
        )  # behind a window nothing is known any more
        drafts = self.guess(self.seeds[slot], [*known, self.last[slot]], min(most, room) - 1)
        for position, token in enumerate([self.last[slot], *drafts], length - 1):
            for group in range(len(self.windows)):
                self.memory[self._row(slot, group, position)] = token
        sampled: list[int] = []
        for draft in [*drafts, None]:
            result = self._sample(slot, length + len(sampled), 1)
            if result.error:
                break
            sampled += result.tokens
            if sampled[-1] != draft:
                break
        self.lengths[slot], self.last[slot] = length + max(1, len(sampled)), (sampled or [0])[-1]
        rejected = [REJECTED] * (1 + len(drafts) - len(sampled))
        return ((sampled or [-1]) + rejected + [UNDRAFTED] * width)[:width]

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
        self.last[slot], self.lengths[slot] = _number(self.seeds[slot], *whole), length + 1
        return SpanResult((self.last[slot],))

    def _read(self, slot: int, group: int, window: int | None, length: int) -> list[int]:
        first = 0 if window is None else max(0, length - window)
        return [self.memory[self._row(slot, group, position)] for position in range(first, length)]
