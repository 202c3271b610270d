"""The engine's life, as the front end sees it: its start, its progress, its sleep, and another start after a failure.

    loading ─▶ ready ◀─▶ stalled          no progress for STALL_S, although there is work
              ▲  │ ▲
              │  ▼ │
              │ restarting ─▶ failed      several failures in ten minutes: another start every minute, until one helps
              │                           (an engine on a thread cannot be started again)
            waking ◀─ asleep ◀─ ready     nothing to do for `sleep_after`: the engine ends, and a request starts another

A failing engine takes nothing else down: its requests get an error at once, and an engine with a process of its own is
started again. Requests that arrive before it is loaded are refused, with the time to return. An idle engine has to show
every second that it is alive, so one that hangs is found before the next request is.

Requests that arrive while the engine sleeps or wakes are held here, and sent once it is loaded. To fall asleep is
decided on the event loop, between two requests, so none can be lost to an engine that ends.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from gradus.loading.progress import Stage
from gradus.server.config import ServerConfig
from gradus.server.engine.link import Link
from gradus.server.engine.messages import Command, Ping, Report, Submit
from gradus.server.failures import Unavailable
from gradus.server.measures import Counts

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "stalled", "restarting", "asleep", "waking", "draining", "failed"]

WAKES, ASLEEP = "the engine wakes", "the engine sleeps until a request wakes it"
STALL_S = 1.7
LOOK_S = 0.25  # between two looks at the engine's progress, so a stall is found within two seconds
HEARTBEAT_S = 1.0  # between two questions to an idle engine


class Supervisor:
    """Keeps an engine running behind a link. For one event loop only.

    fail: ends all requests with the error given, because their engine is gone. rests: notes that the
    engine sleeps. wanted: has an engine loaded, now or in its turn, because requests are held for it.
    state, reason: as /health reports them. stage: what a load is at; None before its first report, and after it.
    given_up: set while the state is "failed". idle_since: when the last request ended, in seconds of `time.monotonic`;
    None while there is one.
    """

    def __init__(
        self,
        config: ServerConfig,
        counts: Counts,
        fail: Callable[[Unavailable], None],
        rests: Callable[[], None],
        wanted: Callable[[], None],
    ) -> None:
        self.state: State = "loading"
        self.stage: Stage | None = None
        self.idle_since: float | None = time.monotonic()
        self.reason = "the model is loading"
        self.given_up = asyncio.Event()
        self._counts = counts
        self._fail = fail
        self._on_rest, self._wanted = rests, wanted
        self._engine = f"the engine of {config.names[0]}" if config.names else "the engine"  # in the log
        self._sleep_after = math.inf if config.sleep_after is None else config.sleep_after
        self._held: dict[int, Submit] = {}  # by handle, while the engine sleeps or wakes
        self._holds = False
        self._runs = False  # whether there is an engine that takes commands
        self._step_timeout = config.step_timeout
        self._schedule = Restarts()
        self._watch = Watch()
        self._last_sent = 0.0
        self.started = False
        self._share = (1, 1)
        self._restarting: asyncio.Task[None] | None = None
        self.load_s = 0.0  # how long the last load took
        self._load_began = 0.0
        self._returns = 0.0  # when requests will be taken again, as far as that can be foreseen; 0: never
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, link: Link, asleep: bool = False) -> None:
        """Watch over the engine from now on. asleep: it is loaded when a request needs it, not before."""
        self._link = link
        self.started = True
        if asleep:
            self.state, self.reason, self._holds = "asleep", ASLEEP, True
        self._keep(self._look())

    def close(self) -> None:
        """Start no other engine."""
        for task in self._tasks:
            task.cancel()

    def drain(self, seconds: float, work_left: Callable[[], float]) -> None:
        """Refuse new requests for the rest of this server's life, and start no other engine.

        seconds: after which this process is gone, and another may answer. work_left: estimates how much sooner the
        running requests will end: seconds from now.
        """
        self._returns = time.monotonic() + seconds
        self._work_left = work_left
        if self.state in ("restarting", "failed"):
            self.close()
        if self.state != "failed":
            self.state, self.reason = "draining", "the server is shutting down"

    @property
    def rests(self) -> bool:
        """Whether the engine owes no report."""
        return self._watch.silent_since is None

    @property
    def ready(self) -> bool:
        """Whether a request that arrives now is served without a fault to be expected."""
        return self.state in ("ready", "asleep", "waking")

    @property
    def loads(self) -> bool:
        """Whether an engine is being loaded that requests wait for, or that has not been loaded before."""
        return self.state in ("loading", "waking") and not self._runs

    @property
    def refusal(self) -> Unavailable | None:
        """The error of a request that arrives now; None if it may enter."""
        match self.state:
            case "ready" | "stalled" | "asleep" | "waking":
                return None
            case "loading":
                return Unavailable(self.reason, "loading", retry_after=1)
        return Unavailable(self.reason, self.state, self._retry_after() if self._returns else None)

    def _retry_after(self) -> int:
        left = self._returns - time.monotonic()
        if self.state == "draining":
            left = min(left, self._work_left())
        return math.ceil(max(1.0, left))

    # -- commands and messages ----------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command, then count it: one that cannot be encoded is not waited for. A request to a sleeping engine
        wakes it, and is sent later."""
        if self._holds and isinstance(command, Submit):
            self._hold(command)
            return
        if self._holds and not self._runs:
            return  # about a request that has ended
        self._link.send(command)
        self._last_sent = time.monotonic()
        self._watch.sent(self._last_sent)

    def reported(self, report: Report) -> None:
        self._watch.reported(report, time.monotonic())
        if self.state == "stalled":
            self.state, self.reason = "ready", "ready"

    def loading(self, stage: Stage) -> None:
        """The load has come to a stage."""
        self.stage = stage
        what = {"loading": "the model is loading", "waking": WAKES}.get(self.state)
        if what is not None:
            self.reason = f"{what}: {stage}"

    def loaded(self) -> None:
        """The engine takes commands."""
        self.load_s = time.monotonic() - self._load_began
        self.stage, self._runs = None, True
        if self.state == "waking":
            log.info("%s is awake after %.1f s", self._engine, self.load_s)
        if self.state in ("loading", "restarting", "failed", "waking"):
            self.state, self.reason = "ready", "ready"
            self.given_up.clear()
        if self.idle_since is not None:
            self.idle_since = time.monotonic()
        self.take_turns(yields=False)

    @property
    def progress(self) -> dict[str, Any] | None:
        """The stage of a load as data; None without one. seconds: since the load began."""
        if self.stage is None:
            return None
        seconds = round(time.monotonic() - self._load_began, 1)
        return {"stage": self.stage.task, "done": self.stage.done, "total": self.stage.total, "seconds": seconds}

    # -- sleep --------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """End an engine without work, whose memory is then free; or start no other one after a failure."""
        log.info("%s sleeps until a request wakes it", self._engine)
        if self.state != "draining":
            self.state, self.reason = "asleep", ASLEEP
        self._holds, self._runs = True, False
        self._watch = Watch()
        if self._restarting is not None:
            self._restarting.cancel()
        self._link.rest()
        self._on_rest()
        if self._held:
            self.wake()

    def wake(self) -> None:
        """Have an engine loaded that is not there."""
        if self.state == "asleep":
            self.state, self.reason = "waking", WAKES
            log.info("a request wakes %s", self._engine)
        self._wanted()

    def stay_asleep(self) -> None:
        """Undo `wake`: no request waits any more, and no engine has been started."""
        if self.state == "waking":
            self.state, self.reason = "asleep", ASLEEP

    def take_turns(self, yields: bool) -> None:
        """Hold new requests from now on (yields), or send them again, and those held."""
        self._holds = yields
        if not yields:
            held, self._held = list(self._held.values()), {}
            for command in held:
                self.send(command)

    def _hold(self, command: Submit) -> None:
        self._held[command.handle] = command
        if not self._runs:
            self.wake()

    @property
    def held(self) -> int:
        """Requests that wait for an engine."""
        return len(self._held)

    def holds(self, handle: int) -> bool:
        """Whether a request is held."""
        return handle in self._held

    def waking(self) -> str:
        """Say in one line what a waking engine is at; "" otherwise."""
        return self.reason if self.state == "waking" else ""

    def withdraw(self, handle: int) -> bool:
        """Drop a request that is held. Returns False if it is not."""
        return self._held.pop(handle, None) is not None

    # -- failures -----------------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Fail all requests, because the engine is gone. Start another one after a pause, if that is possible."""
        self._held, self._holds, self._runs = {}, False, False
        if not self._link.restarts or self.state == "draining":
            log.error("%s", reason)
            self.give_up(reason)
            return
        delay, often = self._schedule.next(time.monotonic())
        self.state = "failed" if often else "restarting"
        self.reason = f"{reason}; another engine is started in {delay:g} s"
        self._returns = time.monotonic() + delay + self.load_s
        log.error("%s", self.reason)
        if often:
            self.given_up.set()
        self._watch = Watch()
        self._counts.restarts += 1
        self._restarting = self._keep(self._load_later(delay))  # first: another model may take the place at once
        self._fail(Unavailable(reason, self.state, self._retry_after()))

    def give_up(self, reason: str) -> None:
        """Fail all requests for good."""
        self.state, self.reason, self._returns = "failed", reason, 0.0
        self._fail(Unavailable(reason, "failed"))
        self.given_up.set()

    def load(self, share: tuple[int, int]) -> None:
        """Start an engine. share: as in ServerConfig."""
        self._share = share
        self.stage = None
        self._load_began = time.monotonic()
        self._link.start(share)

    async def _load_later(self, delay: float) -> None:
        await asyncio.sleep(delay)
        self._restarting = None
        self.load(self._share)

    # -- progress -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the engine's progress, again and again."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._step_timeout / 4))
            if self._watch.silent_since is not None:
                self._judge(time.monotonic() - self._watch.silent_since)
            elif self.state == "ready":
                self._rest(time.monotonic())

    def _rest(self, now: float) -> None:
        """Let an engine without work sleep when it is time, or ask it for a sign of life."""
        if self.idle_since is not None and now - self.idle_since >= self._sleep_after and self._link.restarts:
            log.info("nothing to do for %g s", self._sleep_after)
            self.sleep()
        elif now - self._last_sent > HEARTBEAT_S:
            self.send(Ping())

    def _judge(self, silent: float) -> None:
        """Act on the engine's silence, in seconds. An engine that hangs cannot report it: it is killed, if that is
        possible."""
        limit = self._step_timeout
        if silent > limit and self.state != "failed":
            log.error("an engine step has taken more than %g s: the server is no longer healthy", limit)
            self._link.kill()
            self.lose(f"an engine step hangs (more than {limit:g} s)")
        elif silent > STALL_S and self.state == "ready":
            self.state, self.reason = "stalled", f"the engine has shown no progress for {STALL_S:g} s"

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Watch:
    """Tracks the time since which the engine has been silent despite having work; None while it is idle.

    The loop ends every turn with a report. So silence while there is a step to take, or a command to obey, means a long
    step.
    """

    def __init__(self) -> None:
        self.silent_since: float | None = None
        self._commands_sent = 0

    def sent(self, now: float) -> None:
        self._commands_sent += 1
        if self.silent_since is None:
            self.silent_since = now

    def reported(self, report: Report, now: float) -> None:
        waited_for = report.busy or self._commands_sent > report.commands_taken
        self.silent_since = now if waited_for else None


class Restarts:
    """Decides when to start a failed engine again: later each time. After MOST failures in WINDOW_S seconds, another
    start will hardly repair it, but its cause may end (a full disk, a device in use): then AGAIN_S seconds pass before
    each start."""

    MOST = 3
    WINDOW_S = 600.0
    FIRST_DELAY_S = 0.5
    AGAIN_S = 60.0

    def __init__(self) -> None:
        self._times: list[float] = []

    def next(self, now: float) -> tuple[float, bool]:
        """Count a failure. Returns the seconds until the next start, and whether the engine has failed too often."""
        self._times = [time for time in self._times if now - time < self.WINDOW_S][-self.MOST :]
        self._times.append(now)
        if len(self._times) > self.MOST:
            return self.AGAIN_S, True
        return self.FIRST_DELAY_S * 4.0 ** (len(self._times) - 1), False
