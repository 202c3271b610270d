"""A run recorded as its plans, and played back: the same work again, without requests, scheduler or cache manager.

A plan contains everything that a runner needs. So a slow or faulty run can be saved as a file and run again under a
profiler or on another device, and a worker that receives only plans repeats the work of the first one.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from gradus.engine.engine import Engine, Runner
from gradus.engine.plan import Plan, Result
from gradus.engine.wire import PackError, pack, unpack

LENGTH = struct.Struct("<Q")


class Recorder:
    """Writes every plan that an engine runs to a file while the `with` block is open.

    with Recorder(engine, path): ...
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self._runner = engine, engine.runner
        self._file: BinaryIO = path.open("wb")
        engine.runner = self

    def run(self, plan: Plan) -> Result:
        packed = pack(plan)
        self._file.write(LENGTH.pack(len(packed)) + packed)
        return self._runner.run(plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.runner = self._runner
        self._file.close()


def recorded(path: Path) -> Iterator[Plan]:
    """Yield the plans of a recording in their order. Raises PackError if the file is cut short or is no recording."""
    with path.open("rb") as file:
        while head := file.read(LENGTH.size):
            length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
            packed = file.read(min(length, path.stat().st_size))
            if not length or len(packed) != length:
                raise PackError(f"{path.name} is cut short, or is no recording")
            yield unpack(packed)


def play(path: Path, runner: Runner) -> Iterator[Result]:
    """Run a recording again. runner: runs the same model, with as many slots and pages as the recorded runner had."""
    return (runner.run(plan) for plan in recorded(path))
