"""A deterministic core, for tests that need faults and timing on cue; and the loader that gives it to a server, on a
thread of the test's process or in a process of its own.

Sample i of a prompt yields the tokens i, i + 1, i + 2, … as text "0 1 2 …", one token a step, `slots` samples at once,
first come first served. Validation is the real one; a request's time and its deadline are looked at before each step.
Samples share a step's time by their rows: a prompt's tokens in a sample's first step, and one in each later step.
"""

import itertools
import os
import signal
import time
from collections import deque
from dataclasses import dataclass, field

from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output, Timings
from gradus.errors import CapacityError, ConfigError  # noqa: F401  (expressions name it)
from gradus.loading.templates import ChatTemplates
from gradus.server.engine.loading import described
from gradus.server.engine.messages import ModelInfo


@dataclass
class Sample:
    request: Request
    index: int
    arrived: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    first: float | None = None
    device_s: float = 0.0


class ScriptedTokenizer:
    """A character is a token by its code; a token is its number and `piece`."""

    special_token_ids = frozenset()
    chat_templates = ChatTemplates()

    def __init__(self, piece=" "):
        self.piece = piece

    def encode(self, text, *, special_tokens=True):
        return list(text.encode())

    def token_bytes(self, token):
        return f"{token}{self.piece}".encode()

    def token_id(self, text):
        return None

    def spelling(self, token):
        return self.token_bytes(token)

    def decode(self, tokens, *, skip_special=True):
        return b"".join(map(self.token_bytes, tokens)).decode()


class ScriptedCore:
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
        self.tokenizer = ScriptedTokenizer(piece)
        self.info = ModelInfo(
            "scripted", "p99", "p99", "cpu", "float32", self.limits, settings={"max_sequences": slots}
        )
        self.slots, self.step_s = slots, step_s
        self.faults, self.hang, self.poison = faults or {}, hang or {}, poison
        self.unbalanced, self.checks = unbalanced, 0
        self.waiting, self.running = deque(), []
        self.totals = Metrics()
        self.seen = []  # request ids in the order in which their first sample began
        self.spent = {}  # request id → steps that included it
        self.cancelled = []  # (request id, index, reason) of every cancellation

    def submit(self, request):
        self.totals.prompt_tokens += len(request.prompt)
        self.waiting.extend(Sample(request, index) for index in range(request.params.n))

    @property
    def has_work(self):
        return bool(self.waiting or self.running)

    @property
    def waiting_count(self):
        return len(self.waiting)

    def step(self):
        started = time.perf_counter()
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
        self._share(time.perf_counter() - started)
        return ended + [self._advance(sample) for sample in list(self.running)]

    def _share(self, seconds):
        rows = [1 if sample.tokens else len(sample.request.prompt) for sample in self.running]
        for sample, own in zip(self.running, rows, strict=True):
            sample.device_s += seconds * own / sum(rows)
        self.totals.busy_s += seconds if rows else 0.0

    def device_seconds(self):
        return [(sample.request.id, sample.index, sample.device_s) for sample in self.running]

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
                    ended.append(self._end(sample, (), reason))
                    break
        return ended

    def cancel(self, request_id, index=None, reason="cancelled"):
        self.cancelled.append((request_id, index, reason))
        everything = (*self.running, *self.waiting)
        meant = [one for one in everything if one.request.id == request_id and index in (None, one.index)]
        return [self._end(sample, (), reason) for sample in meant]

    def metrics(self):
        metrics = Metrics(**{name: getattr(self.totals, name) for name in Metrics.__slots__})
        metrics.waiting, metrics.active = len(self.waiting), len(self.running)
        return metrics

    def _advance(self, sample):
        self.spent[sample.request.id] = self.spent.get(sample.request.id, 0) + 1
        if self.poison in sample.request.prompt:
            return self._end(sample, (), "error")
        token = sample.index + len(sample.tokens)
        sample.first = sample.first or time.perf_counter()
        sample.tokens.append(token)
        self.totals.generated_tokens += 1
        if len(sample.tokens) == sample.request.max_tokens:
            return self._end(sample, (token,), "length")
        return Output(sample.request.id, sample.index, (token,))

    def _end(self, sample, tokens, reason):
        (self.running if sample in self.running else self.waiting).remove(sample)
        self.totals.completed += reason in ("length", "stop")
        self.totals.failed += reason == "error"
        self.totals.cancelled += reason in ("cancelled", "timeout", "deadline")
        now = time.perf_counter()
        return Output(
            sample.request.id,
            sample.index,
            tokens,
            finish_reason=reason,
            error="secret detail" if reason == "error" else None,
            timings=Timings(
                queued_s=0.0,
                ttft_s=sample.first and sample.first - sample.arrived,
                total_s=now - sample.arrived,
                tokens=len(sample.tokens),
                device_s=sample.device_s,
            ),
        )


# What a core in a process of its own does in the step that begins a prompt with this token.
RAISE, HANG, KILL, EXIT, GARBAGE, EXHAUST, PAUSE = 901, 902, 903, 904, 905, 906, 907


class DeadlyCore(ScriptedCore):
    """A core whose requests can ask for its end. PAUSE makes a step longer than the engine may be silent."""

    def close(self):
        print("the engine was closed")

    def step(self):
        for sample in self.waiting:
            self._die(sample.request.prompt[0])
        return super().step()

    def _die(self, token):
        match token:
            case 901:
                raise RuntimeError("secret detail")
            case 902:
                time.sleep(600)
            case 903:
                os.kill(os.getpid(), signal.SIGKILL)
            case 904:
                os._exit(7)
            case 905:
                os.write(connected(), b"\xff" * 100)
            case 906:
                raise CapacityError("a step found no memory")
            case 907:
                time.sleep(1.1)


def connected():
    """The file number of the engine process's own socket."""
    import gc
    import socket

    (found,) = (
        each for each in gc.get_objects() if issubclass(type(each), socket.socket) and each.family == socket.AF_UNIX
    )
    return found.fileno()


def disturbed_llm(steps, disturb, running=0):
    """The final engine with a tiny model. After `steps` steps, `disturb(engine)` is called before the next.

    running: count only steps that begin with at least this many sequences, however late they come.
    """
    from gradus.text.llm import LLM

    llm = LLM("random:tiny-llama", device="cpu", dtype="float32")
    engine, taken = llm.core.core, itertools.count()
    step = engine.step

    def disturbed():
        if len(engine.scheduler.running) >= running and next(taken) == steps:
            disturb(engine)
        return step()

    engine.step = disturbed
    return llm


def starve(engine):
    """Ask the system for more memory than any has."""
    import torch

    torch.empty(1 << 60, dtype=torch.uint8)


def spoil(engine):
    """Put NaN into the first page of the sequence in slot 1."""
    attention = engine.runner.attention
    attention.storage.values[:, attention.tables[0, 1, 0], 0] = float("nan")


def greedy(max_tokens, **fields):
    return SamplingParams(max_tokens=max_tokens, **fields)


# -- the loader --------------------------------------------------------------------------------------------------------

_engines = {}  # name of the "model" → [what makes a ScriptedCore or an LLM, what it made]
_numbers = itertools.count()

WRITTEN = "scripted: "  # begins the name of a "model" that is an expression, for another process to evaluate


def written(engine):
    """A name that has this loader load what an expression makes, in whatever process it runs."""
    return WRITTEN + engine


def register(make):
    """A name that, as the configuration's `model`, has this loader load what `make` makes, in this process alone."""
    name = f"scripted-{next(_numbers)}"
    _engines[name] = [make, None]
    return name


def registered(name):
    """Return the made object, or None before it is made."""
    return _engines[name][1]


def fail(error):
    raise error


def _made(config):
    """Make the object once, on the first side's request."""
    if config.model.startswith(WRITTEN):
        _engines.setdefault(config.model, [lambda: eval(config.model.removeprefix(WRITTEN)), None])
    entry = _engines[config.model]
    if entry[1] is None:
        entry[1] = entry[0]()
    return entry[1]


def open_tokenizer(config, progress=None):
    if config.model.startswith(WRITTEN) and "Core(" not in config.model:
        return ScriptedTokenizer()  # the engine's side is what fails
    return _made(config).tokenizer


def load_engine(config, progress=None):
    made = _made(config)
    return (made, made.info) if isinstance(made, ScriptedCore) else (made.core, described(made, config))
