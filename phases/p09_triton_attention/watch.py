"""Counting what kernels do: launches and programs anywhere, and where Triton interprets also the bytes they move.

    with watched() as seen:
        paged_attention(…)
    seen["paged_attention_kernel"].read        # bytes that each program asked for, in the order in which they ran

Bytes are counted at the loads and stores themselves, lane by lane, without those that a mask holds back. A cache might
spare some of them: two programs that read the same key count it twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter
from triton.runtime.jit import KernelInterface


@dataclass(slots=True)
class Watched:
    """One kernel. file: where its source is. read, written: bytes of each program, if Triton interprets it."""

    name: str
    file: Path
    launches: int = 0
    programs: int = 0
    read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)


def interprets() -> bool:
    """Whether Triton runs kernels on the CPU, as Python. It was decided when Triton was imported."""
    return isinstance(triton.language.cdiv, interpreter.InterpretedFunction)


@contextmanager
def watched() -> Iterator[dict[str, Watched]]:
    """Count by kernel until the block ends. It replaces functions of Triton, so only one may run at a time."""
    seen: dict[str, Watched] = {}
    with _replaced(KernelInterface, "__getitem__", _counting_launches(seen)):
        if not interprets():
            yield seen
            return
        builder = interpreter.interpreter_builder
        with (
            _replaced(builder, "set_grid_idx", _counting_programs(seen, builder.set_grid_idx)),
            _replaced(builder, "create_masked_load", _counting_bytes(seen, builder.create_masked_load, "read", 1)),
            _replaced(builder, "create_masked_store", _counting_bytes(seen, builder.create_masked_store, "written", 2)),
        ):
            yield seen


def _counting_launches(seen: dict[str, Watched]) -> Callable[..., Any]:
    def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
        function = kernel.fn
        name = function.__name__
        found = seen.pop(name, None) or Watched(name, Path(function.__code__.co_filename))
        found.launches, found.programs = found.launches + 1, found.programs + prod(grid)
        seen[name] = found  # last: the kernel whose programs run now
        return lambda *args, **options: kernel.run(*args, grid=grid, warmup=False, **options)

    return launch


def _counting_programs(seen: dict[str, Watched], begin: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*place: int) -> Any:
        kernel = next(reversed(seen.values()))
        kernel.read.append(0)
        kernel.written.append(0)
        return begin(*place)

    return counted


def _counting_bytes(
    seen: dict[str, Watched], move: Callable[..., Any], counter: str, mask_at: int
) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        width = args[0].get_element_ty().primitive_bitwidth // 8
        getattr(next(reversed(seen.values())), counter)[-1] += int(args[mask_at].data.sum()) * width
        return move(*args)

    return counted


@contextmanager
def _replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = owner.__dict__.get(name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


# -- torch's own operations --------------------------------------------------------------------------------------------


class Moved(TorchDispatchMode):
    """Adds up what torch's operations read and write. Indexing reads only the rows that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **kwargs or {})
        if not function.is_view and "empty" not in function.name():
            written = sum(each.nbytes for each in flat(result))
            taken = "index.Tensor" in function.name()
            self.total += written + (written if taken else sum(each.nbytes for each in flat(args)))
        return result


def flat(values: object) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [each for value in values for each in flat(value)] if isinstance(values, tuple | list) else []
