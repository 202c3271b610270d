"""A server in virtual time: slots, a queue, and steps that take as long as a formula says. No clock is read.

Everything that shapes latency under load is here, and nothing else: every running request gets one token per step,
prompts are read in chunks from the rest of the step's budget (p06), and whoever finds no free slot waits in line.
"""

from collections import deque
from dataclasses import dataclass

from phases.p13_serving.load.records import Record


@dataclass(frozen=True, slots=True)
class Pace:
    """A step takes `fixed` seconds, `row` more per decoding request, and `token` more per token of a prompt.

    slots: requests that run at once. budget: tokens of a step, of decodes and prompts together.
    """

    fixed: float
    row: float
    token: float
    slots: int
    budget: int

    def seconds(self, rows: int, tokens: int = 0) -> float:
        return self.fixed + rows * self.row + tokens * self.token


@dataclass(slots=True)
class Request:
    """A request on its way. at: when it arrives. prompt, output: in tokens. read, written: tokens so far.

    cached: tokens of the prompt that need not be computed. The last token always is: it gives the first logits (p05).
    """

    at: float
    prompt: int
    output: int
    cached: int = 0
    read: int = 0
    written: int = 0
    first: float | None = None

    def record(self, now: float | None) -> Record:
        return Record(self.at, self.first, now, self.written)


@dataclass(frozen=True, slots=True)
class Step:
    """rows: requests that decoded. tokens: of prompts. waiting: requests without a slot when the step began."""

    start: float
    end: float
    rows: int
    tokens: int
    waiting: int


class Server:
    """Submit requests in the order of their arrival, and advance its clock, `now`."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.now = 0.0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.records: list[Record] = []
        self.steps: list[Step] = []

    @property
    def inside(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, request: Request) -> None:
        if not self.inside:
            self.now = max(self.now, request.at)  # it has been idle until now
        request.read = min(request.cached, request.prompt - 1)
        self.waiting.append(request)

    def advance(self, until: float) -> None:
        """Take all steps that begin before `until`."""
        while self.inside and self.now < until:
            self.step()

    def step(self) -> list[Record]:
        """Take one step: admit, choose tokens, let the time pass. Returns the records of requests that ended."""
        while self.waiting and len(self.running) < self.pace.slots:
            self.running.append(self.waiting.popleft())
        decoding = [one for one in self.running if one.read == one.prompt]
        reading = [one for one in self.running if one.read < one.prompt]
        rest = budget = max(self.pace.budget - len(decoding), 0)
        for one in reading:
            chunk = min(one.prompt - one.read, rest)
            one.read, rest = one.read + chunk, rest - chunk
        start, self.now = self.now, self.now + self.pace.seconds(len(decoding), budget - rest)
        self.steps.append(Step(start, self.now, len(decoding), budget - rest, len(self.waiting)))
        return self._commit([*decoding, *(one for one in reading if one.read == one.prompt)])

    def _commit(self, advanced: list[Request]) -> list[Record]:
        """Give each of these requests a token, at the end of the step."""
        for one in advanced:
            one.written += 1
            one.first = self.now if one.first is None else one.first
        ended = [one.record(self.now) for one in advanced if one.written == one.output]
        self.running = [one for one in self.running if one.written < one.output]
        self.records += ended
        return ended
