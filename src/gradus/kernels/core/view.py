"""A view of a model: the same tree of parts with the same tensors, with parts replaced by kernel twins.

A twin computes the same as its part, with kernels. `fuse/model.py` has the twins of plain parts, `fuse/quantized.py`
those of quantized matrices. A view costs no memory and leaves its model unchanged, so phases and engines can share one
loaded model.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from gradus.kernels.core.counters import Counters

log = logging.getLogger(__name__)


class Twin(nn.Module):
    """Has everything that its part has, down to the same tensors. Subclass it together with the part's class.

    counters: of its view, for kernels whose programs share a sum.
    """

    counters: Counters | None = None

    def __init__(self, part: nn.Module) -> None:
        _take_over(self, part)


Make = TypeVar("Make", bound=Callable[..., nn.Module | None])  # a twin's class, or a function that chooses one or none
_TWINS: dict[type[nn.Module], Callable[..., nn.Module | None]] = {}
COMPUTES = ("forward", "after", "onto", "times")  # what a twin replaces: see `Linear`, `RMSNorm` and `Activation`


def twin_of(*kinds: type[nn.Module]) -> Callable[[Make], Make]:
    """Register the twin of these classes, and of their subclasses that compute the same way: a class or a function."""

    def name(make: Make) -> Make:
        _TWINS.update(dict.fromkeys(kinds, make))
        return make

    return name


def view(part: nn.Module, counters: Counters | None = None) -> nn.Module:
    """Return the part's twin, or the part itself if it has none; its children are replaced the same way.

    counters: of the view that it is part of; None begins a view with counters of its own. Work on two streams
    at once needs two views.
    """
    counters = counters or Counters()
    make = _twin_maker(type(part))
    seen = make(part) if make else None
    if seen is None:
        seen = _take_over(object.__new__(type(part)), part)
    if isinstance(seen, Twin):
        seen.counters = counters
    parts = {name: child if child is None else view(child, counters) for name, child in part._modules.items()}
    vars(seen).update(_modules=parts, **parts)  # parts are also where Python looks first: see `shorten_lookups`
    return seen


def is_known(part: nn.Module | None) -> bool:
    """Whether a kernel may compute this part from its tensors: it is a twin, or has one. None is known too."""
    return part is None or isinstance(part, Twin) or _twin_maker(type(part)) is not None


def _twin_maker(kind: type[nn.Module]) -> Callable[..., nn.Module | None] | None:
    named = next((base for base in kind.__mro__ if base in _TWINS), None)
    if named is None:
        return None
    if any(getattr(kind, name, None) is not getattr(named, name, None) for name in COMPUTES):
        log.debug("%s names no kernel twin: it stays as it is in the view", kind.__name__)
        return None
    return _TWINS[named]


def _take_over(seen: nn.Module, part: nn.Module) -> nn.Module:
    """Give `seen` the state of `part`: the same tensors, in dictionaries of its own."""
    vars(seen).update(vars(part), _parameters=dict(part._parameters), _buffers=dict(part._buffers))
    return seen
