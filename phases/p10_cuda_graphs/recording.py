"""A CUDA graph for a CPU: it makes nothing faster, and has a graph's rules, so the runner can be tried without a GPU.

Every tensor operation of the step is noted, and done again at each replay: with the same arguments, on the same memory.
What Python computed in between is not noted. So a replay that would need a new number from the host has the old one, as
a graph has it. (A GPU is stricter: while it records, asking a tensor for its value is an error.)
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recording(TorchDispatchMode):
    """A recorder as `GraphRunner` takes one: `Recording.of(step)` gives the replay."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []

    @classmethod
    def of(cls, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recording = cls()
        with recording:
            out = step()

        def replay() -> Tensor:
            recording.replay()
            return out

        return replay

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer without asking torch, which would import its compiler for that and take a second."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        self.calls.append((operation, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for operation, args, kwargs, out in self.calls:
            for place, new in zip(tree_leaves(out), tree_leaves(operation(*args, **kwargs)), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != new.data_ptr():  # views are where they were
                    place.copy_(new)
