"""The engine's side: a runner that sends each plan to another process, and returns at once.

The engine plans the next step while the other process runs this one. Results come in the order of their plans, so each
is the next frame. A lost connection ends the engine: what it had stored is gone with the runner's memory of it.
No torch here.
"""

from collections import deque
from dataclasses import dataclass, field

from gradus.engine.core import Compiler
from gradus.engine.plan import Plan, Sampled
from gradus.engine.structured import Structured
from gradus.engine.wire import pack
from gradus.errors import ConfigError, GradusError
from gradus.execution.remote.messages import (
    BEGIN,
    FAILED,
    HELLO,
    LARGEST_GREETING,
    PLAN,
    PLANS,
    PREPARE,
    PROTOCOL,
    RESULT,
    Begin,
    Hello,
    MessageError,
    pack_greeting,
    pack_structured,
    unpack_failed,
    unpack_hello,
    unpack_result,
)
from gradus.execution.remote.result_check import ResultCheck
from gradus.execution.remote.stream import Gone, Stream

PATIENCE_S = 30.0
"""How long a runner may take to greet an engine: it serves one at a time."""
MOST_PREPARED = 64  # constraints to compile soon that are kept until the next plan


class RunnerLost(GradusError):
    """The runner in another process is gone, or has refused to go on."""


def greet(stream: Stream, program: str) -> Hello:
    """Exchange greetings. program: this one's name, for people. Raises ConfigError, in one line, for a runner of
    another version, and for one that says nothing."""
    try:
        kind, payload = stream.receive(LARGEST_GREETING)
    except Gone as error:
        raise ConfigError(f"{error}: it may be loading its model, or serving another engine") from error
    except MessageError as error:
        raise ConfigError(f"{stream.peer} speaks another protocol: {error}") from error
    if kind == FAILED:
        raise ConfigError(f"{stream.peer} refuses: {unpack_failed(payload)}")
    try:
        hello = unpack_hello(payload if kind == HELLO else b"")
    except MessageError as error:
        raise ConfigError(f"{stream.peer} speaks another protocol: {error}") from error
    if (hello.protocol, hello.plans) != (PROTOCOL, PLANS):
        raise ConfigError(
            f"{stream.peer} speaks version {hello.protocol} with plans {hello.plans!r}, and this engine version "
            f"{PROTOCOL} with plans {PLANS!r}: run both from one release"
        )
    try:
        stream.send(BEGIN, pack_greeting(Begin(protocol=PROTOCOL, program=program)))
    except Gone as error:
        raise ConfigError(f"{error}") from error
    stream.patient(None)
    return hello


@dataclass(slots=True)
class RemoteStep:
    """A step that the other process runs: see `gradus.engine.plan.Result`. rows: known once `get` has returned."""

    runner: "RemoteRunner"
    wanted: ResultCheck
    rows: int = 0

    def get(self) -> Sampled:
        """Wait for the result. Raises RunnerLost."""
        self.rows, sampled = self.runner.receive(self.wanted)
        return sampled


@dataclass(slots=True)
class RemoteRunner:
    """Runs plans in another process, greeted as `hello` says."""

    stream: Stream
    hello: Hello
    _prepared: deque[Structured] = field(default_factory=lambda: deque(maxlen=MOST_PREPARED))

    def run(self, plan: Plan) -> RemoteStep:
        """Send the plan. Raises RunnerLost."""
        try:
            while self._prepared:
                self.stream.send(PREPARE, pack_structured(self._prepared.popleft()))
            self.stream.send(PLAN, pack(plan))
        except Gone as error:
            raise self._lost(error) from error
        return RemoteStep(self, ResultCheck(plan))

    def receive(self, wanted: ResultCheck) -> tuple[int, Sampled]:
        """Wait for the oldest step's result. Raises RunnerLost."""
        try:
            kind, payload = self.stream.receive()
            if kind == FAILED:
                raise RunnerLost(f"{self.stream.peer} has ended the connection: {unpack_failed(payload)}")
            rows, sampled = unpack_result(payload if kind == RESULT else b"")
            wanted.check(sampled, self.hello)
        except (Gone, MessageError) as error:
            self.stream.close()
            raise RunnerLost(f"{self.stream.peer} failed: {error}") from error
        return rows, sampled

    def prepare(self, structured: Structured) -> None:
        """Have the other process compile a constraint, from the next plan on. Safe to call from any thread; only the
        newest are kept."""
        self._prepared.append(structured)

    def _lost(self, error: Gone) -> RunnerLost:
        """Find out why nothing can be sent: a runner says so before it closes."""
        try:
            while True:
                kind, payload = self.stream.receive()
                if kind == FAILED:
                    return RunnerLost(f"{self.stream.peer} has ended the connection: {unpack_failed(payload)}")
        except (Gone, MessageError):
            return RunnerLost(f"{error}: start it again, and load the model again")


class RemoteCompiler:
    """Compiles constraints here, where requests are checked, and in the runner's process, which keeps to them."""

    def __init__(self, own: Compiler, runner: RemoteRunner) -> None:
        self._own, self._runner = own, runner

    def hold(self, structured: Structured) -> None:
        self._runner.prepare(structured)
        self._own.hold(structured)

    def hold_compiled(self, structured: Structured) -> bool:
        held = self._own.hold_compiled(structured)
        if held:
            self._runner.prepare(structured)  # it may have dropped what it had compiled
        return held

    def release(self, structured: Structured) -> None:
        self._own.release(structured)
