"""A core that does not go on after a step that was left half done, and says why in one line."""

from collections.abc import Sequence

import torch

from gradus.config.options import EngineConfig, EngineOptions
from gradus.engine.core import Core
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output
from gradus.errors import GradusError
from gradus.execution.memory import DeviceMemory, OutOfMemory, ran_out


class BrokenEngine(GradusError):
    """A call of an engine after one of its steps has raised something."""


class GuardedCore:
    """`core`, until one of its steps raises. That step is half done, so no other can follow it.

    device, options: what the core was built with, for the message.
    """

    def __init__(self, core: Core, device: torch.device, options: EngineOptions) -> None:
        self.core = core
        self.device = device
        self.options = options
        self._broken: GradusError | None = None

    @property
    def limits(self) -> ModelLimits:
        return self.core.limits

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    @property
    def waiting_count(self) -> int:
        return self.core.waiting_count

    def submit(self, request: Request) -> None:
        """Raises what the core raises, and after a step that raised something, OutOfMemory or BrokenEngine."""
        self._check_whole()
        self.core.submit(request)

    def step(self) -> Sequence[Output]:
        """Raises OutOfMemory, from then on always. Anything else is raised as it is, and from then on BrokenEngine."""
        self._check_whole()
        try:
            return self.core.step()
        except BaseException as error:
            if not ran_out(error):
                what = f"{type(error).__name__} ended a step of this engine half-way"
                self._broken = BrokenEngine(f"{what}, so it cannot go on: load the model again")
                raise
            holders = DeviceMemory.of(self.device).holders(self.device) if self.device.type == "cuda" else ""
            self._broken = OutOfMemory(
                f"a step found no memory on {self.device}: start again with {self._smaller()}{holders}"
            )
            raise self._broken from error

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> Sequence[Output]:
        """After a step that raised something there is nothing left to end, and its half-done state is left alone."""
        return [] if self._broken is not None else self.core.cancel(request_id, index, reason)

    def metrics(self) -> Metrics:
        return self.core.metrics()

    def check(self) -> None:
        self.core.check()

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _smaller(self) -> str:
        """What leaves a step more room."""
        if isinstance(self.options, EngineConfig):
            fraction = f"--memory-fraction (now {self.options.memory_fraction:g}) or --cache-tokens"
            return f"a lower {fraction}, --token-budget or --max-sequences"
        return "a lower --max-sequences or --context-length"
