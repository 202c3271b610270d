"""A view of a model: the same tree of parts with the same tensors, in which parts are exchanged for kernel twins.

A twin computes what its part computes, with kernels. `fuse.py` has the twins of the plain parts; a quantized matrix has
its own beside its kernels. A view costs no memory, and the model that it views stays what it was, so phases and engines
can share one loaded model.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from torch import nn

log = logging.getLogger(__name__)


class Twin(nn.Module):
    """Has all that its part has, the very same tensors. Subclass it together with the part's class."""

    def __init__(self, part: nn.Module) -> None:
        _take_over(self, part)


Make = TypeVar("Make", bound=Callable[..., nn.Module])  # a twin's class, or a function that chooses one
_TWINS: dict[type[nn.Module], Callable[..., nn.Module]] = {}


def twin_of(*kinds: type[nn.Module]) -> Callable[[Make], Make]:
    """Decorates what makes the twin of a part: of these classes, and of their subclasses with the same `forward`."""

    def name(make: Make) -> Make:
        _TWINS.update(dict.fromkeys(kinds, make))
        return make

    return name


def view(part: nn.Module) -> nn.Module:
    """The part's twin, or where it has none the part as it is; and so on downwards."""
    make = _twin_maker(part)
    seen = make(part) if make else _take_over(object.__new__(type(part)), part)
    parts = {name: child if child is None else view(child) for name, child in part._modules.items()}
    vars(seen).update(_modules=parts, **parts)  # parts are also where Python looks first: see `shorten_lookups`
    return seen


def _twin_maker(part: nn.Module) -> Callable[..., nn.Module] | None:
    kind = type(part)
    named = next((base for base in kind.__mro__ if base in _TWINS), None)
    if named is None:
        return None
    if kind.forward is not named.forward:  # it computes in another way, so that twin is not its own
        log.debug("%s names no kernel twin: it stays as it is in the view", kind.__name__)
        return None
    return _TWINS[named]


def _take_over(seen: nn.Module, part: nn.Module) -> nn.Module:
    """`seen` gets the state of `part`: its tensors, in dictionaries of its own."""
    vars(seen).update(vars(part), _parameters=dict(part._parameters), _buffers=dict(part._buffers))
    return seen
