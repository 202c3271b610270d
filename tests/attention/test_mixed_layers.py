"""Layers of different head sizes, and layers that read another's keys and values, on one heap of pages."""

import random

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.gathered import GatheredDecodes
from gradus.attention.paged import PagedAttention
from gradus.attention.sparse import SparseDecodes
from gradus.attention.storage import PagedStorage
from gradus.attention.whole import WholeSequence, WholeSequences
from gradus.cache import TableChange
from gradus.quantization.kv import rounded
from tests.attention.mixed import MIXED, MixedPages, formula, near, sinks_of

CPU = torch.device("cpu")
KINDS = {"sparse": (PagedStorage, SparseDecodes), "gathered": (PagedStorage, GatheredDecodes),
         "8 bits": (Fp8Storage, GatheredDecodes)}  # fmt: skip
PAGES, SLOTS = 320, 4
STEPS = [
    [(2, 9)],
    [(2, 1), (0, 5)],
    [(0, 1), (3, 1), (2, 1)],
    [(0, 1), (1, 3), (2, 1), (3, 11)],
    [(1, 2), (3, 9), (0, 1)],
    [(3, 1), (2, 1), (1, 1), (0, 1)],
]


def pages_of(name: str, kind: str = "sparse", page_size: int = 4, pages: int = PAGES) -> MixedPages:
    config, (storage_kind, decodes) = MIXED[name], KINDS[kind]
    storage = storage_kind(config, pages, page_size, torch.float32, CPU)
    attention = PagedAttention(config, storage, SLOTS)
    attention.decodes = decodes(config, storage)
    return MixedPages(config, storage, attention)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", MIXED)
def test_any_mixture_of_spans_attends_as_the_formula_says(name, page_size, kind):
    pages, kept = pages_of(name, kind, page_size), rounded if kind == "8 bits" else torch.clone
    for spans in STEPS:
        assert near(pages.step(*spans), pages.right(*spans, kept=kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MIXED)
def test_pages_go_from_group_to_group_and_poison_stays_behind(name, kind):
    """Pages that a window gave back serve other groups; all free pages hold other numbers meanwhile."""
    pages, kept = pages_of(name, kind, page_size=2, pages=150), rounded if kind == "8 bits" else torch.clone
    draw = random.Random(name)
    for _ in range(12):
        slots = draw.sample(range(3), draw.randint(1, 3))
        spans = [(slot, draw.choice([1, 1, 3, 7])) for slot in slots]
        wiped = tuple(draw.sample(pages.free, 4))
        for tensor in pages.storage.tensors:  # free pages alone: the bytes of no other page may change by it
            (tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor)[:, pages.free] = 77
        assert near(pages.step(*spans, wiped=wiped), pages.right(*spans, kept=kept))
        for slot in slots:
            pages.give_back(slot)


def written(storage: PagedStorage, layer: int, page: int) -> list[torch.Tensor]:
    """Fill a page of one layer; returns which bytes of each tensor changed, all others being zeros."""
    for tensor in storage.tensors:
        tensor.view(torch.uint8).zero_()
    for part in (*storage.pages(layer), *(storage.scales(layer) or ())):
        part[page * storage.group(layer).together].view(torch.uint8).fill_(1)
    return [tensor.view(torch.uint8) != 0 for tensor in storage.tensors]


@pytest.mark.parametrize("kind", [PagedStorage, Fp8Storage])
@pytest.mark.parametrize("name", MIXED)
def test_layers_of_a_group_divide_a_page_and_touch_no_other(name, kind):
    storage = kind(MIXED[name], 3, 4, torch.float32, CPU)
    for group in storage.groups:
        for page in (0, 1, 3):
            by_layer = [written(storage, layer, page) for layer in group.layers]
            for each in zip(*by_layer, strict=True):
                total = torch.stack(each).sum(0)
                assert total.max() <= 1, "two layers share a byte"
                assert not total[:, [other for other in range(4) if other != page]].any(), "another page"
            if len(group.layers) == storage.layout.depth * group.together:
                for each in list(zip(*by_layer, strict=True))[:2]:
                    assert torch.stack(each).any(0)[:, page].all(), "a full group fills its pages"


@pytest.mark.parametrize("kind", KINDS)
def test_copied_pages_hold_the_same_wherever_they_are_put(kind):
    """The tier on disk copies them so, within a process and after a restart."""
    name = "wide full layers"
    pages, other = pages_of(name, kind), pages_of(name, kind)
    pages.step((0, 13))
    moved = {page: PAGES - page for table in pages.tables[0] for page in table}
    for page, there in moved.items():
        other.storage.copy_in(there, pages.storage.copy_out(page))
    other.tables[0] = [[moved[page] for page in table] for table in pages.tables[0]]
    other.free = [page for page in other.free if page not in moved.values()]
    other.history, other.generator = pages.history, pages.generator
    other.attention.update_tables([(0, TableChange(0, tuple(map(tuple, other.tables[0]))))])
    kept = rounded if kind == "8 bits" else torch.clone
    for count in (1, 4, 1):
        assert near(other.step((0, count)), other.right((0, count), kept=kept))
    assert len(pages.storage.copy_out(3)) == pages.storage.page_bytes


@pytest.mark.parametrize("name", MIXED)
def test_whole_sequences_lend_keys_and_values_too(name):
    config, pages = MIXED[name], pages_of(name)
    pages.step((0, 12))
    whole, double = WholeSequence(config), WholeSequences(config, 2)
    for layer, parts in enumerate(pages.history[0]):
        q, k, v = parts if len(parts) == 3 else (*parts, None, None)
        sinks = sinks_of(config, layer)
        right = formula(config, layer, q, *pages.history[0][config.kv_source(layer)][1:], sinks)
        assert near([whole.attend(layer, q, k, v, sinks)], [right])
        twice = [None if part is None else torch.cat([part, part]) for part in (q, k, v)]
        assert near([double.attend(layer, *twice, sinks)], [torch.cat([right, right])])


def test_only_numbers_of_pages_that_layers_share_change():
    storage = PagedStorage(MIXED["narrow full layers"], 4, 4, torch.float32, CPU)
    assert [(group.window, group.together) for group in storage.groups] == [(None, 2), (6, 1), (6, 1)]
    tables = [[3, 1] for _ in storage.groups]
    assert storage.numbered(tables) == [[6, 2], [3, 1], [3, 1]]
    alike = PagedStorage(MIXED["one size"], 4, 4, torch.float32, CPU)
    assert alike.numbered(tables) is tables
