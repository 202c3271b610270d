"""Pages that go to host memory and come back are the same bytes, in the layout that files have."""

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.device.pinned import PinnedMemory
from gradus.errors import ConfigError
from gradus.execution.gpu.page_copies import PageCopies, runs
from gradus.models.shapes import SHAPES
from tests.attention.mixed import MIXED

CPU = torch.device("cpu")


def filled(kind, config, page_size, dtype=torch.bfloat16):
    storage = kind(config, 12, page_size, dtype, CPU)
    for tensor in storage.tensors:
        tensor.view(torch.uint8).random_(generator=torch.Generator().manual_seed(1))
    return storage


@pytest.mark.parametrize("kind", [PagedStorage, Fp8Storage])
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("config", [*MIXED.values(), SHAPES["tiny-llama"]], ids=[*MIXED, "tiny-llama"])
def test_pages_come_back_as_they_were_and_nothing_else_changes(kind, config, page_size):
    storage = filled(kind, config, page_size)
    copies = PageCopies(storage, 7)
    pages, places = [3, 11, 4, 12], [5, 6, 0, 2]
    assert copies.out(pages, places).done
    for page, place in zip(pages, places, strict=True):
        assert bytes(copies.view(place)) == bytes(storage.copy_out(page)), "as the disk tier has it"
    before = [tensor.view(torch.uint8).clone() for tensor in storage.tensors]
    moved = [9, 3, 1, 4]
    assert copies.back(places, moved).done
    for tensor, old in zip(storage.tensors, before, strict=True):
        new = tensor.view(torch.uint8)
        for page in range(13):
            source = pages[moved.index(page)] if page in moved else page
            assert torch.equal(new[:, page], old[:, source])
    copies.close()


def test_a_copy_takes_as_many_pages_as_its_staging_has_room_for(monkeypatch):
    monkeypatch.setattr("gradus.execution.gpu.page_copies.STAGING_BYTES", 1)
    storage = filled(PagedStorage, SHAPES["tiny-llama"], 16)
    copies = PageCopies(storage, 2)
    assert copies.at_once == 1
    copies.out([5], [1])
    assert bytes(copies.view(1)) == bytes(storage.copy_out(5))


@pytest.mark.parametrize(
    ("places", "found"),
    [([], []), ([4], [(0, 4, 1)]), ([4, 5, 6], [(0, 4, 3)]), ([4, 5, 1, 2, 9], [(0, 4, 2), (2, 1, 2), (4, 9, 1)])],
)
def test_adjacent_places_are_one_call(places, found):
    assert list(runs(places)) == found


def test_memory_that_the_system_does_not_have_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"host_cache: the system has no \S+ GiB of memory: lower it"):
        PinnedMemory(1 << 62, CPU)
