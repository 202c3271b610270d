"""Copies of pages between a GPU and pinned host memory, on streams of their own, while steps run.

A page lies in a piece per layer and tensor, of 16 to 32 KiB. Copied piece by piece, a prefix of 10,000 tokens of
Llama-3.1-8B would take 40,000 calls. So a kernel gathers some pages in a staging buffer on the device, where each is in
one piece, and the copy engine moves them to host memory, a call per run of adjacent places; and the reverse. The gather
runs at the memory's speed, some fifty times that of the bus, and the copy engine takes no multiprocessor from steps.

`gradus.cache.host.copies` argues what may overlap. Each direction has a stream and a staging buffer, so copies of
one direction follow each other, and those of both share the bus.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from gradus.attention.storage import PagedStorage
from gradus.device.pinned import PinnedMemory
from gradus.device.transfer import current_stream, numbered, upload
from gradus.kernels import missing
from gradus.kernels.rows.reference import gather_pages_reference, scatter_pages_reference

STAGING_BYTES = 64 << 20  # of each direction. A copy takes the host some ten calls, however many pages it has
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # pages are moved, not computed with
Move = Callable[[Tensor, Tensor, Tensor], None]
"""Of (staging, a tensor of the storage, pages): see `gradus.kernels.rows.pages`."""


class Part(NamedTuple):
    """A tensor of the storage, [depth, pages + 1, words of a page in a layer], and its places in the staging buffers,
    [pages at once, depth, words]."""

    pool: Tensor
    going: Tensor
    coming: Tensor


class Flight:
    """A copy under way.

    used: the point after which the device's pages are free for others, or filled. landed: the point at which all is
    done. Both are None on a CPU, where a copy is done when its call returns.
    """

    def __init__(self, used: "torch.cuda.Event | None", landed: "torch.cuda.Event | None") -> None:
        self.used, self.landed = used, landed

    @property
    def done(self) -> bool:
        return self.landed is None or bool(self.landed.query())


class PageCopies:
    """Copies between the pages of `storage` and `places` places of host memory: `gradus.cache.host.copies.Copies`.

    One thread launches all copies, the same that launches the steps.
    """

    def __init__(self, storage: PagedStorage, places: int) -> None:
        self.page_bytes = storage.page_bytes
        self._device = numbered(storage.keys.device)
        tensors = [tensor.view(torch.uint8).flatten(2) for tensor in storage.tensors]
        size = gcd(max(WORDS), *(tensor.shape[2] for tensor in tensors))
        self.at_once = pages_at_once(self.page_bytes)
        self._memory = PinnedMemory(places * self.page_bytes, self._device)
        self._places = self._memory.bytes.view(WORDS[size]).view(places, -1)
        self._bytes = self._memory.bytes.view(places, -1).numpy()
        shape = self.at_once, self.page_bytes // size
        self._going, self._coming = (torch.empty(shape, dtype=WORDS[size], device=self._device) for _ in range(2))
        self._parts = self._parts_of([tensor.view(WORDS[size]) for tensor in tensors])
        self._gather, self._scatter = _moves(self._device)
        self._warm_up()
        on_gpu = self._device.type == "cuda"
        self._out, self._back = (torch.cuda.Stream(self._device) if on_gpu else None for _ in range(2))
        for stream in filter(None, (self._out, self._back)):
            stream.wait_stream(current_stream(self._device.index))  # which makes the tensors above

    def _parts_of(self, tensors: Sequence[Tensor]) -> list[Part]:
        parts, at = list[Part](), 0
        for tensor in tensors:
            depth, _, words = tensor.shape
            staged = slice(at, at := at + depth * words)
            going, coming = (each[:, staged].unflatten(1, (depth, words)) for each in (self._going, self._coming))
            parts.append(Part(tensor, going, coming))
        return parts

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Move page 0 to staging and back: kernels are compiled now, not while a step waits."""
        page = torch.zeros(1, dtype=torch.int64, device=self._device)
        for part in self._parts:
            self._gather(part.going[:1], part.pool, page)
            self._scatter(part.going[:1], part.pool, page)

    # -- copies --------------------------------------------------------------------------------------------------------

    def out(self, pages: Sequence[int], places: Sequence[int]) -> Flight:
        staging = self._going[: len(pages)]
        with torch.inference_mode(), torch.cuda.stream(self._out) if self._out else nullcontext():
            where = upload(pages, torch.int64, self._device)
            for part in self._parts:
                self._gather(part.going[: len(pages)], part.pool, where)
            used = self._point(self._out)
            for first, place, count in runs(places):
                self._places[place : place + count].copy_(staging[first : first + count], non_blocking=True)
            return Flight(used, self._point(self._out))

    def back(self, places: Sequence[int], pages: Sequence[int]) -> Flight:
        staging = self._coming[: len(pages)]
        with torch.inference_mode(), torch.cuda.stream(self._back) if self._back else nullcontext():
            for first, place, count in runs(places):
                staging[first : first + count].copy_(self._places[place : place + count], non_blocking=True)
            where = upload(pages, torch.int64, self._device)
            for part in self._parts:
                self._scatter(part.coming[: len(pages)], part.pool, where)
            landed = self._point(self._back)
            return Flight(landed, landed)

    def _point(self, stream: "torch.cuda.Stream | None") -> "torch.cuda.Event | None":
        return None if stream is None else stream.record_event()

    # -- order ---------------------------------------------------------------------------------------------------------

    def open(self, after: Flight | None) -> None:
        if self._back is None:
            return
        self._back.wait_stream(current_stream(self._device.index))
        if after is not None and after.landed is not None:
            self._back.wait_event(after.landed)

    def fence(self, copy: Flight, *, steps: bool = True) -> None:
        if copy.used is None or self._out is None or self._back is None:
            return
        self._out.wait_event(copy.used)
        self._back.wait_event(copy.used)
        if steps:
            current_stream(self._device.index).wait_event(copy.used)

    # -- host memory ---------------------------------------------------------------------------------------------------

    def view(self, place: int) -> memoryview:
        return self._bytes[place].data

    @property
    def staging_bytes(self) -> int:
        """The device's memory that staging takes."""
        return self._going.nbytes + self._coming.nbytes

    def close(self) -> None:
        for stream in filter(None, (self._out, self._back)):
            with suppress(RuntimeError):  # a device that has failed copies nothing any more
                stream.synchronize()
        self._memory.close()


def _moves(device: torch.device) -> tuple[Move, Move]:
    """Choose what gathers pages and what scatters them."""
    if missing(str(device)):
        return gather_pages_reference, scatter_pages_reference
    from gradus.kernels.rows.pages import gather_pages, scatter_pages  # here: Triton is not everywhere

    return gather_pages, scatter_pages


def pages_at_once(page_bytes: int) -> int:
    """The most pages per copy: as many as staging has room for, but one in any case."""
    return max(1, STAGING_BYTES // page_bytes)


def staging_bytes(page_bytes: int) -> int:
    """The device's memory that staging will take, in both directions, for pages of this size."""
    return 2 * pages_at_once(page_bytes) * page_bytes


def runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of adjacent places: index of the first, its place, and their number."""
    first = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield first, places[first], end - first
            first = end
