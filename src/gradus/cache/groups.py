"""Groups of layers that share a block table, so that their pages are taken and freed together.

A layer with a sliding window never reads positions before its window, so its pages can be freed while a layer with full
attention keeps its own: their block tables differ. Layers with the same window and the same heads form groups, each
with its own block table. A page has the same bytes in every group, so one pool serves all of them: full layers can use
the pages that windows free. (Gemma 3 270M: 15 layers with a window, 3 without; 6 groups of 3.)

A page is `depth` strips. A strip holds `page_size` positions of one layer, or of several narrower ones side by side: it
is as wide as the least common multiple of all layers' widths, so no kind of layer leaves a part of it unused. Layers
that read another layer's keys and values take no room. Values of a position's keys, as many as of its values:

    model        layers that store                          strip   page      groups, and what they leave unused
    Gemma 4 12B  40 sliding, 8 · 256; 8 full, 1 · 512       2,048   2 strips  1 of 8 full, 20 of 2; nothing
    Gemma 4 31B  50 sliding, 16 · 256; 10 full, 4 · 512     4,096   5 strips  1 of 10 full, 10 of 5; nothing
    Gemma 4 E2B  12 sliding, 1 · 256; 3 full, 1 · 512       512     3 strips  1 of 3 full, 2 of 6; nothing
    Gemma 4 E4B  20 sliding, 2 · 256; 4 full, 2 · 512       1,024   4 strips  1 of 4 full, 2 of 8, 1 of 4: half a page

No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Protocol


class Heads(Protocol):
    """The key-value heads of a layer."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


class Layers(Protocol):
    """A model's layers, as its configuration (`gradus.models.config.ModelConfig`) describes them."""

    @property
    def num_layers(self) -> int: ...

    @property
    def windows(self) -> Sequence[int | None]: ...

    def layer(self, index: int) -> Heads:
        """The sizes of one layer."""

    def stores_kv(self, layer: int) -> bool:
        """Whether a layer has keys and values of its own."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table.

    window: positions that a query sees, including its own; None: all. layers: indices in the model, ascending.
    num_kv_heads, head_dim: of each of the layers. together: the layers that share a strip.
    """

    window: int | None
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    together: int

    @property
    def width(self) -> int:
        """Values of a position's keys in one layer, and as many of its values."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The layers whose keys and values a page holds, by group.

    groups: those without a window come first. depth: strips per page. width: values of a position's keys in a strip.
    """

    groups: tuple[LayerGroup, ...]
    depth: int
    width: int

    @property
    def head_sizes(self) -> dict[tuple[int, int], int]:
        """(num_kv_heads, head_dim) of all kinds of layers, and how many of them share a strip."""
        return {(group.num_kv_heads, group.head_dim): group.together for group in self.groups}

    def position_bytes(self, per_value: int, per_scale: int = 0) -> int:
        """Bytes of one position in a page.

        per_scale: of each head's key, and its value, where they have scales. Every kind of layer has its own room for
        scales, because their number per strip differs (Gemma 4 12B in 8 bits: 48 bytes where 32 are in use, of 2,096).
        """
        scales = sum(heads * together for (heads, _), together in self.head_sizes.items())
        return 2 * self.depth * (self.width * per_value + scales * per_scale)


def page_layout(config: Layers, together: int = 1) -> PageLayout:
    """Divide a model's layers into groups, and a page among the layers of a group.

    The kind of layer that fills the fewest strips decides their number per page. The last group of another kind may
    have fewer layers, and then leaves a part of each of its pages unused. together: the fewest layers that share a
    strip.
    """
    members: dict[tuple[int | None, int, int], list[int]] = {}
    for layer in filter(config.stores_kv, range(config.num_layers)):
        sizes = config.layer(layer)
        members.setdefault((config.windows[layer], sizes.num_kv_heads, sizes.head_dim), []).append(layer)
    width = together * lcm(*(heads * head_dim for _, heads, head_dim in members))
    shares = {kind: width // (kind[1] * kind[2]) for kind in members}
    depth = min(-(-len(layers) // shares[kind]) for kind, layers in members.items())
    groups = [
        LayerGroup(kind[0], tuple(layers[first : first + depth * shares[kind]]), *kind[1:], together=shares[kind])
        for kind, layers in sorted(members.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0))
        for first in range(0, len(layers), depth * shares[kind])
    ]
    return PageLayout(tuple(groups), depth, width)


def layer_groups(config: Layers) -> tuple[LayerGroup, ...]:
    """The groups of a model's layers, as its pages hold them."""
    return page_layout(config).groups
