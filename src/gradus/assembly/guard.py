"""Guards a core: after it was closed, or a step was left half done, every call reports why in one line."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch

from gradus import garbage
from gradus.config.options import EngineConfig, EngineOptions
from gradus.device.allocator import GivesBack
from gradus.engine.core import Compiler, Compiles, Core, Parts, Watchable
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output
from gradus.errors import GradusError
from gradus.execution.memory.device_memory import DeviceMemory, OutOfMemory, ran_out

C = TypeVar("C", bound=Core)


class BrokenEngine(GradusError):
    """An engine was called after one of its steps had raised an error."""


class ClosedEngine(GradusError):
    """An engine was called after it was closed."""


@runtime_checkable
class Closing(Protocol):
    """A core that ends more than its memory."""

    def close(self) -> object: ...


class GuardedCore(Generic[C]):
    """Wraps `core` until it is closed or one of its steps raises. Such a step is half done, so no other can follow it.

    device, options: those that the core was built with. Its memory goes back to the system with this object, or by
    `close`.
    """

    def __init__(self, core: C, device: torch.device, options: EngineOptions) -> None:
        self.device = device
        self.options = options
        self._broken: GradusError | None = None
        self._core: C | None = core
        self._gives_back: GivesBack | None = GivesBack(device, core)  # after the core

    @property
    def core(self) -> C:
        """The wrapped core. Raises ClosedEngine after `close`."""
        if self._core is None:
            raise ClosedEngine("this engine is closed: load the model again")
        return self._core

    def close(self) -> None:
        """Give back the memory of weights, cache and graphs, and end the threads. Running requests end silently."""
        if self._core is not None:
            if isinstance(self._core, Closing):
                self._core.close()
            self._core = None
            garbage.see_all()
            self._gives_back = None

    @property
    def compiler(self) -> Compiler | None:
        return self.core.compiler if isinstance(self.core, Compiles) else None

    @property
    def parts(self) -> Parts | None:
        return self.core.parts if isinstance(self.core, Watchable) else None

    @property
    def limits(self) -> ModelLimits:
        return self.core.limits

    @property
    def has_work(self) -> bool:
        return self._core is not None and self._core.has_work

    @property
    def waiting_count(self) -> int:
        return self.core.waiting_count

    def submit(self, request: Request) -> None:
        """Submit a request. Raises the core's errors, and OutOfMemory or BrokenEngine after a step that raised."""
        self._check_whole()
        self.core.submit(request)

    def step(self) -> Sequence[Output]:
        """Run a step. If it runs out of memory, this and every later call raise OutOfMemory. Any other error is raised
        unchanged, and every later call raises BrokenEngine."""
        self._check_whole()
        core = self.core
        try:
            return core.step()
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
        """Cancel a request. Does nothing after `close` or after a step that raised: its half-done state stays."""
        gone = self._core is None or self._broken is not None
        return [] if gone else self.core.cancel(request_id, index, reason)

    def metrics(self) -> Metrics:
        return self.core.metrics()

    def device_seconds(self) -> Sequence[tuple[str, int, float]]:
        return self.core.device_seconds()

    def check(self) -> None:
        self.core.check()

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _smaller(self) -> str:
        """Name the settings that leave a step more room when lowered."""
        if isinstance(self.options, EngineConfig):
            fraction = f"--memory-fraction (now {self.options.memory_fraction:g}) or --cache-tokens"
            return f"a lower {fraction}, --token-budget or --max-sequences"
        return "a lower --max-sequences or --context-length"
