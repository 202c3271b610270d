"""Paged attention without the gather: the Triton kernels of `gradus.kernels` read the pages where they lie.

The backend around them does what `PagedAttention` does (tables by slot, the rows where new keys and values go) and
plans the step: spans are sorted into a few launch shapes by their length, and how each launch divides its work is
decided on the GPU. A step of decodes takes one launch shape; one that reads prompts beside them takes two or three.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.device.capability import capability
from gradus.device.transfer import upload_parts
from gradus.kernels.attention_launch import Launch, launches
from gradus.kernels.attention_work import Work
from gradus.kernels.new_token import Turning
from gradus.kernels.paged_attention import paged_attention
from gradus.kernels.split_attention import Partials
from gradus.models.config import ModelConfig

# Up to this width of heads, attention rotates and stores those of decodes itself: one launch fewer in each layer. Wider
# ones would take so many registers that fewer programs run at once, which costs more (both measured on an H200).
TURNING_WIDTH = 64


class TritonPagedAttention(PagedAttention):
    """slots: how many sequences run at once. The storage is on a CUDA GPU; or on a CPU, for Triton's interpreter."""

    turns: bool  # of this step: whether attention rotates and stores heads itself (`gradus.kernels.new_token`)

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int) -> None:
        super().__init__(config, storage, slots)
        self.group = config.num_heads // config.num_kv_heads
        able = capability(self.device)
        self.launches = launches(
            config.head_dim, storage.dtype, self.group, _processors(self.device), able.shared_memory,
            eight_bits=storage.scales(0) is not None,
        )  # fmt: skip
        self.partials = Partials(
            self.launches, kv_heads=config.num_kv_heads, head_dim=config.head_dim, device=self.device
        )
        # views are made once: making one takes the host longer than it looks, and every layer needs two
        self._pages = list(zip(storage.keys.unbind(), storage.values.unbind(), strict=True))
        self._works: dict[tuple[Launch, int | None, int], Work] = {}

    def prepare(self, batch: Batch) -> None:
        self._begin(batch)
        end = batch.query_start[-1] + batch.counts[-1]
        parts = batch.slots, batch.lengths, [*batch.query_start, end]
        slots, lengths, query_start = upload_parts(parts, torch.int32, self.device)
        self.plan(slots, query_start, lengths, batch.counts)

    def plan(self, slots: Tensor, query_start: Tensor, lengths: Tensor, counts: Sequence[int]) -> None:
        """Divide a step's attention among programs, on the GPU: see `Work.lay_out` for the tensors.

        counts: each span's new tokens, on the host. Launches depend on nothing else, so a captured step may be replayed
        with other slots and lengths.
        """
        self.turns = max(counts) == 1 and self.config.head_dim <= TURNING_WIDTH
        self.works: dict[int | None, list[Work]] = {group.window: [] for group in self.storage.groups}
        fewest = 1
        for launch in self.launches:
            tokens = launch.rows // self.group
            mine = [count for count in counts if count >= fewest and (count <= tokens or launch is self.launches[-1])]
            if mine:
                tiles = sum(triton.cdiv(count, tokens) for count in mine)
                for window, works in self.works.items():
                    work = self._work(launch, window, triton.next_power_of_2(tiles))
                    work.lay_out(slots, query_start, lengths, fewest=fewest, most=max(mine))
                    works.append(work)
            fewest = tokens + 1

    def _work(self, launch: Launch, window: int | None, tiles: int) -> Work:
        """Work lists are kept, since captured graphs know them by address. Sizes are powers of two, so few."""
        key = (launch, window, tiles)
        if key not in self._works:
            self._works[key] = Work(
                launch, tiles=tiles, group=self.group, kv_heads=self.config.num_kv_heads, window=window,
                device=self.device,
            )  # fmt: skip
        return self._works[key]

    # -- in each layer -----------------------------------------------------------------------------------------------

    def destination(self, layer: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Where a kernel may store this step's keys and values itself: see `gradus.kernels.fuse`."""
        group, index = self.storage.place(layer)
        return *self._pages[index], self.new_rows[group], self.storage.scales(layer)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.storage.store(layer, self.new_rows[self.storage.place(layer)[0]], k, v)
        return self.attend_stored(layer, q)

    def attend_stored(self, layer: int, q: Tensor) -> Tensor:
        """q: [N, Hq, Dh], rotated, whose keys and values are stored by now. Returns [N, Hq, Dh]."""
        return self._attend(layer, q, None)

    def store_and_attend(self, layer: int, qkv: Tensor, turning: Turning) -> Tensor:
        """In a step that `turns`: from the qkv product [N, (Hq + 2 Hkv) Dh] to what attention gives, [N, Hq, Dh].

        turning: what its heads pass on the way.
        """
        return self._attend(layer, qkv, turning)

    def _attend(self, layer: int, q: Tensor, turning: Turning | None) -> Tensor:
        group, index = self.storage.place(layer)
        out = torch.empty(len(q), self.config.num_heads, self.config.head_dim, dtype=q.dtype, device=q.device)
        for work in self.works[self.config.windows[layer]]:
            paged_attention(
                q, *self._pages[index], self.tables[group], work, self.partials, out,
                scale=self.config.attention_scale, softcap=self.config.attention_softcap, turning=turning,
                scales=self.storage.scales(layer),
            )  # fmt: skip
        return out


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for Triton's interpreter, which runs one program after the other."""
    return 1 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count
