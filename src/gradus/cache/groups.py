"""Groups of layers that share a block table, so that their pages are taken and freed together.

A layer with a sliding window never reads positions before its window, so its pages can be freed while a layer with full
attention keeps its own: their block tables differ. Layers with the same window form groups, each with its own block
table. All groups of a model have the same number of layers, so a page has the same bytes in every group, and one pool
serves all of them: full layers can use the pages that windows free. (Gemma 3 270M: 15 layers with a window, 3 without;
6 groups of 3.) No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """window: positions that a query sees, including its own; None: all. layers: indices in the model, ascending."""

    window: int | None
    layers: tuple[int, ...]


def layer_groups(windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Split a model's layers into groups by their windows. The groups without a window come first.

    The rarest window decides the number of layers per group. The last group of another window may have fewer, and then
    leaves a part of each of its pages unused.
    """
    members: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        members.setdefault(window, []).append(layer)
    depth = min(len(layers) for layers in members.values())
    return tuple(
        LayerGroup(window, tuple(layers[first : first + depth]))
        for window, layers in sorted(members.items(), key=lambda item: (item[0] is not None, item[0] or 0))
        for first in range(0, len(layers), depth)
    )
