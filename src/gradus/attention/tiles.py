"""Launch shapes, work lists and room for partial results, which layers with the same heads share.

Most models have one kind of heads. Where layers differ (Gemma 4: narrow heads that look back a window, wide ones that
see everything), each kind has shapes of its own, since a tile that suits one does not fit the other.
"""

from collections.abc import Iterable

import triton

from gradus.attention.storage import PagedStorage
from gradus.device.capability import Capability
from gradus.kernels.attention.launch import HopperLaunch, Launch, hopper_launch, launches
from gradus.kernels.attention.new_token import MOST_NEW
from gradus.kernels.attention.splits import Partials
from gradus.kernels.attention.work import Work
from gradus.models.config import ModelConfig

Kind = tuple["Tiles", int | None]
"""A layer's tiles, and its window."""


def kinds_of(config: ModelConfig, storage: PagedStorage, processors: int, able: Capability) -> list[Kind]:
    """Each layer's kind. Layers with the same heads share their tiles."""
    windows: dict[tuple[int, int], list[int | None]] = {}
    sizes = [config.layer(layer) for layer in range(config.num_layers)]
    for each, window in zip(sizes, config.windows, strict=True):
        windows.setdefault((each.num_kv_heads, each.head_dim), []).append(window)
    found = {}
    for each in sizes:
        heads = each.num_kv_heads, each.head_dim
        if heads not in found:
            found[heads] = Tiles(each, windows[heads], storage, processors, able)
    tiles = [found[each.num_kv_heads, each.head_dim] for each in sizes]
    return list(zip(tiles, config.windows, strict=True))


class Tiles:
    """One kind of layers.

    group: query heads that share a key head. windows: those of the layers. launches: the shapes to choose from,
    smallest first. tokens: how many a tile of each holds.
    """

    def __init__(
        self,
        sizes: ModelConfig,
        windows: Iterable[int | None],
        storage: PagedStorage,
        processors: int,
        able: Capability,
    ) -> None:
        """sizes: one of the layers' configurations."""
        self.kv_heads, self.head_dim = sizes.num_kv_heads, sizes.head_dim
        self.group, self.windows = sizes.num_heads // sizes.num_kv_heads, tuple(dict.fromkeys(windows))
        self.device, self.eight_bits = storage.keys.device, storage.scales(0) is not None
        self.launches = launches(self.head_dim, storage.dtype, self.group, processors, able, eight_bits=self.eight_bits)
        self.tokens = [launch.tokens(self.group) for launch in self.launches]
        self.partials = Partials(self.launches, kv_heads=self.kv_heads, head_dim=self.head_dim, device=self.device)
        self._works: dict[tuple[Launch, int | None, int], Work] = {}

    def hopper(self, window: int | None) -> HopperLaunch | None:
        """The shape for long prompts on Hopper, in layers with that window; None if there is none for these heads."""
        return hopper_launch(self.head_dim, self.group, window)

    def holding(self, tokens: int) -> int:
        """The number of the first shape whose tile holds that many tokens, or else of the last."""
        return next((number for number, most in enumerate(self.tokens) if most >= tokens), len(self.tokens) - 1)

    def takes_in(self, most: int) -> bool:
        """Whether spans of up to `most` new tokens, drafts among them, may be rotated and stored as they attend.

        A tall tile in 8 bits has no registers left for new keys; without shared key heads no tile has.
        """
        tallest = self.tokens[0] if self.eight_bits else self.tokens[-1]
        return self.group > 1 and most <= min(MOST_NEW, tallest)

    def work(self, launch: Launch, window: int | None, tiles: int) -> Work:
        """Get or make a work list with room for `tiles` tiles. They are kept, since captured graphs hold their
        addresses. Sizes are powers of two, so there are few."""
        key = (launch, window, triton.next_power_of_2(tiles))
        if key not in self._works:
            self._works[key] = Work(
                launch, tiles=key[2], group=self.group, kv_heads=self.kv_heads, window=window, device=self.device
            )
        return self._works[key]
