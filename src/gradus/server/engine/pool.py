"""Which of several models are loaded: at most `most`, and those that were used least recently give way.

A model that is asked for while it is not loaded joins a queue of models, first come, first served:

    there is room         it is loaded
    a model has no work   the one used least recently sleeps, and this one takes its place
    all have work         the one used least recently yields, once its turn has lasted as long as its load: it takes
                          no more requests, they are held as if it slept. As its last request ends, it sleeps, and joins
                          the queue's end if requests are held for it

Running requests are never cut. A request waits for those that ran when its model's turn came, and never for later ones:
a model that gets requests without pause starves no other. A turn's length bounds the cost of loads: with two models
that both get requests without pause, about half of the time.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol


class Member(Protocol):
    """A model of the pool."""

    @property
    def working(self) -> bool:
        """Whether its engine loads, or has requests. Requests that are held do not count."""

    @property
    def load_s(self) -> float:
        """How long its last load took, in seconds."""

    def load(self, share: tuple[int, int]) -> None:
        """Start its engine. share: (models with this one, models that may be loaded)."""

    def sleep(self) -> None:
        """End its engine, which has no work."""

    def take_turns(self, yields: bool) -> None:
        """Hold new requests from now on (yields), or take them again, and those held."""


Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after some seconds, on the event loop."""


class Pool:
    """The models that share a server's memory. For one event loop only.

    most: models that may be loaded at once.
    """

    LEAST_TURN_S = 0.2

    def __init__(self, most: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._later: Later | None = None
        self._loaded: dict[Member, float] = {}  # least recently used first → when its turn began; inf: not yet
        self._wanting: dict[Member, None] = {}  # in order of arrival
        self._yielding: dict[Member, None] = {}
        self._advancing = False
        self._looks = False  # whether a look is to come

    def start(self, later: Later) -> None:
        self._later = later

    @property
    def loaded(self) -> tuple[Member, ...]:
        """The models that have a place, the least recently used first."""
        return tuple(self._loaded)

    # -- called by the members ----------------------------------------------------------------------------------------

    def claim(self, member: Member) -> None:
        """Have a model loaded, now or in its turn. Does nothing for one that has a place, or waits for one."""
        if member not in self._loaded:
            self._wanting[member] = None
            self.advance()

    def forgo(self, member: Member) -> bool:
        """Take back a claim: no request needs the model any more. Returns False if it already has a place."""
        if member not in self._wanting:
            return False
        del self._wanting[member]
        self.advance()
        return True

    def used(self, member: Member) -> None:
        """A request for the model has arrived, or ended."""
        if member in self._loaded:
            self._loaded[member] = self._loaded.pop(member)

    def begins(self, member: Member) -> None:
        """The model has been loaded: its turn begins."""
        if member in self._loaded:
            self._loaded[member] = self._clock()
        self.advance()

    def leave(self, member: Member) -> None:
        """The model sleeps: its place is free."""
        self._loaded.pop(member, None)
        self._yielding.pop(member, None)
        self.advance()

    # -- turns --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Load what can be loaded. Call it whenever a member's work may have ended."""
        if self._advancing:  # a member that sleeps claims a place at once
            return
        self._advancing = True
        try:
            while self._wanting and self._seat(next(iter(self._wanting))):
                pass
            self._balance()
        finally:
            self._advancing = False

    def _seat(self, member: Member) -> bool:
        """Give a model a place, or put another to sleep. Returns False if all places have work."""
        if len(self._loaded) < self.most:
            del self._wanting[member]
            self._loaded[member] = math.inf
            member.load((len(self._loaded), self.most))
            return True
        idle = next((one for one in self._loaded if not one.working), None)
        if idle is None:
            return False
        del self._loaded[idle]
        self._yielding.pop(idle, None)
        idle.sleep()
        return True

    def _balance(self) -> None:
        """Have as many models yield as wait for a place."""
        while len(self._yielding) > len(self._wanting):
            last, _ = self._yielding.popitem()
            last.take_turns(yields=False)
        for member, began in self._loaded.items():
            if len(self._yielding) >= len(self._wanting):
                return
            if member in self._yielding or began == math.inf:
                continue
            if (left := began + max(member.load_s, self.LEAST_TURN_S) - self._clock()) > 0:
                self._look_in(left)
                continue
            self._yielding[member] = None
            member.take_turns(yields=True)

    def _look_in(self, seconds: float) -> None:
        """Advance after some seconds, unless that is to happen anyway."""
        if self._later is None or self._looks:
            return
        self._looks = True
        self._later(seconds, self._look)

    def _look(self) -> None:
        self._looks = False
        self.advance()
