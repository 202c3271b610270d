"""Paged attention against the textbook formula in float64: any mixture of spans, on pages in any order."""

import random
from dataclasses import replace

import pytest
import torch

from gradus.attention.batch import Batch
from gradus.attention.gathered import GatheredDecodes
from gradus.attention.paged import PagedAttention
from gradus.attention.sparse import SparseDecodes
from gradus.attention.storage import PagedStorage
from gradus.cache import TableChange
from gradus.models.config import ModelConfig
from gradus.models.shapes import SHAPES
from tests.phases.conftest import FAMILIES, NaiveAttention

CAPPED = replace(SHAPES["tiny-llama"], attention_softcap=5.0)
CONFIGS = {name: SHAPES[name] for name in FAMILIES} | {"capped": CAPPED}
DECODES = [GatheredDecodes, SparseDecodes]
PAGES, SLOTS = 120, 4


class Pages:
    """Block tables made up on the spot, on pages in random order, and the whole history that attention should see."""

    kind = PagedStorage

    def __init__(self, config: ModelConfig, page_size: int = 4, decodes=SparseDecodes, dtype=torch.float32) -> None:
        self.config, self.page_size = config, page_size
        self.storage = self.kind(config, PAGES, page_size, dtype, torch.device("cpu"))
        self.attention = PagedAttention(config, self.storage, SLOTS)
        self.attention.decodes = decodes(config, self.storage)
        self.generator = torch.Generator().manual_seed(0)
        self.free = random.Random(0).sample(range(1, PAGES + 1), PAGES)
        self.tables = {slot: [[] for _ in self.storage.groups] for slot in range(SLOTS)}
        self.history: dict[int, list[torch.Tensor]] = {}  # slot → q, k, v of all its positions, [layers, n, H, Dh]

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.storage.dtype)

    def forget(self, slot: int) -> None:
        self.free += [page for table in self.tables[slot] for page in table if page]
        self.tables[slot] = [[] for _ in self.storage.groups]
        self.history.pop(slot, None)

    def grow(self, slot: int, end: int) -> TableChange | None:
        missing = -(-end // self.page_size) - len(self.tables[slot][0])
        for table in self.tables[slot]:
            table += [self.free.pop() for _ in range(missing)]
        return self.change(slot, len(self.tables[slot][0]) - missing) if missing else None

    def change(self, slot: int, kept: int = 0) -> TableChange:
        return TableChange(kept, tuple(tuple(table[kept:]) for table in self.tables[slot]))

    def step(self, *spans: tuple[int, int], wiped=()) -> list[torch.Tensor]:
        """Run (slot, count) spans; returns [rows, Hq, Dh] for each layer."""
        config, layers, dim = self.config, self.config.num_layers, self.config.head_dim
        starts = [self.history[slot][0].shape[1] if slot in self.history else 0 for slot, _ in spans]
        new = []
        for slot, count in spans:
            heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            qkv = [self.noise(layers, count, head, dim) for head in heads]
            old = self.history.get(slot, [each[:, :0] for each in qkv])
            self.history[slot] = [torch.cat(pair, dim=1) for pair in zip(old, qkv, strict=True)]
            new.append(qkv)
        batch = batch_of(spans, starts, [self.grow(slot, s + n) for (slot, n), s in zip(spans, starts, strict=True)])
        batch.wiped = wiped
        self.attention.prepare(batch)
        q, k, v = (torch.cat(parts, dim=1) for parts in zip(*new, strict=True))
        return [self.attention.attend(layer, q[layer], k[layer], v[layer]) for layer in range(layers)]

    def right(self, *spans: tuple[int, int]) -> list[torch.Tensor]:
        """Return what the last step should have computed."""
        naive = NaiveAttention(type("Model", (), {"config": self.config}))
        return [
            torch.cat([naive.attend(layer, *(part[layer] for part in self.history[slot]))[-n:] for slot, n in spans])
            for layer in range(self.config.num_layers)
        ]


def batch_of(spans, starts, tables) -> Batch:
    counts = [count for _, count in spans]
    positions = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
    return Batch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        owners=torch.tensor([slot for slot, count in spans for _ in range(count)]),
        slots=[slot for slot, _ in spans],
        query_start=[sum(counts[:i]) for i in range(len(counts))],
        counts=counts,
        starts=starts,
        lengths=[start + n for start, n in zip(starts, counts, strict=True)],
        tables=tables,
        logits_rows=torch.tensor([], dtype=torch.int64),
        row_spans=[],
    )


def near(found: list[torch.Tensor], right: list[torch.Tensor], tolerance: float = 1e-5) -> bool:
    return all(
        torch.allclose(a.double(), b.double(), atol=tolerance, rtol=0) for a, b in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("decodes", DECODES)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", CONFIGS)
def test_any_mixture_of_spans_attends_as_the_formula_says(name, page_size, decodes):
    pages = Pages(CONFIGS[name], page_size, decodes)
    steps = [
        [(2, 9)],  # a prompt alone
        [(2, 1), (0, 5)],  # a decode and a prompt
        [(0, 1), (3, 1), (2, 1)],  # decodes in any order, one of them a prompt of one token
        [(0, 1), (1, 3), (2, 1), (3, 11)],  # decodes that are not neighbors, a chunk with something before it
        [(1, 2), (3, 6), (0, 1)],  # chunks that reach further back than any window
        [(3, 1), (2, 1), (1, 1), (0, 1)],
    ]
    for spans in steps:
        assert near(pages.step(*spans), pages.right(*spans))


@pytest.mark.parametrize("decodes", DECODES)
def test_long_runs_of_decodes_cross_pages_and_windows(decodes):
    pages = Pages(SHAPES["tiny-gemma3"], page_size=4, decodes=decodes)
    pages.step((0, 3), (1, 13))
    for _ in range(20):
        assert near(pages.step((0, 1), (1, 1)), pages.right((0, 1), (1, 1)))


@pytest.mark.parametrize("decodes", DECODES)
def test_a_slot_and_its_pages_change_owners(decodes):
    pages = Pages(SHAPES["tiny-llama"], decodes=decodes)
    pages.step((0, 30), (1, 10))
    pages.forget(0)
    pages.forget(1)
    pages.free = pages.free[-20:]  # nothing but used pages
    pages.step((0, 2), (1, 17))
    for _ in range(3):
        assert near(pages.step((0, 1), (1, 1)), pages.right((0, 1), (1, 1)))


@pytest.mark.parametrize("decodes", DECODES)
def test_pages_before_the_window_are_not_read(decodes):
    """The cache manager has freed these pages or given them to other sequences: here they hold the worst values."""
    pages = Pages(SHAPES["tiny-mistral"], page_size=4, decodes=decodes)
    pages.step((0, 40), (1, 21))
    for slot, first in ((0, 40 - 16 + 1), (1, 21 - 16 + 1)):
        for table in pages.tables[slot]:
            gone, table[: first // 4] = table[: first // 4], [0] * (first // 4)
            pages.storage.keys[:, gone] = pages.storage.values[:, gone] = float("nan")
    pages.attention.prepare(batch_of([(0, 1), (1, 1)], [40, 21], [pages.change(s) for s in (0, 1)]))
    assert near(pages.step((0, 1), (1, 1)), pages.right((0, 1), (1, 1)))
    assert near(pages.step((0, 3), (1, 1)), pages.right((0, 3), (1, 1)))


@pytest.mark.parametrize("decodes", DECODES)
def test_a_nan_stays_in_its_own_sequence(decodes):
    """Even where a shorter neighbor's table still names, beyond its end, the page in which the NaN now appears."""
    pages = Pages(SHAPES["tiny-llama"], decodes=decodes)
    pages.step((0, 30))
    pages.forget(0)
    pages.step((0, 2), (1, 27))  # slot 1 gets pages that slot 0 had
    assert set(pages.tables[1][0]) & set(pages.attention.tables[0, 0].tolist())
    pages.storage.keys[:, pages.tables[1][0]] = pages.storage.values[:, pages.tables[1][0]] = float("nan")
    found = pages.step((0, 1), (1, 1))
    assert near([layer[:1] for layer in found], pages.right((0, 1)))
    assert all(layer[1].isnan().all() for layer in found)


@pytest.mark.parametrize("decodes", DECODES)
def test_a_wiped_page_holds_no_trace_of_a_nan(decodes):
    pages = Pages(SHAPES["tiny-llama"], decodes=decodes)
    pages.step((0, 10))
    used = pages.tables[0][0][:]
    pages.storage.keys[:, used] = pages.storage.values[:, used] = float("nan")
    pages.forget(0)
    pages.free = used
    assert near(pages.step((1, 5), wiped=tuple(used)), pages.right((1, 5)))
    assert pages.storage.keys.isfinite().all() and pages.storage.values.isfinite().all()
    for spans in ([(1, 1)], [(1, 3)], [(1, 1)]):
        assert near(pages.step(*spans), pages.right(*spans))


def test_page_0_is_nobodys():
    pages = Pages(SHAPES["tiny-gemma3"])
    pages.step((0, 9), (1, 1))
    pages.step((0, 1), (1, 2))
    assert not pages.storage.keys[:, 0].any() and not pages.storage.values[:, 0].any()


@pytest.mark.parametrize("decodes", DECODES)
@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-mistral", "capped"])
def test_a_nan_in_page_0_reaches_no_sequence(name, decodes):
    """Padding rows are stored there; pages before a window, and places behind a shorter neighbor, point there."""
    pages = Pages(CONFIGS[name], decodes=decodes)
    pages.step((0, 40), (1, 5))
    for slot, length in ((0, 40), (1, 5)):
        for table, group in zip(pages.tables[slot], pages.storage.groups, strict=True):
            first = 0 if group.window is None else max(0, length - group.window + 1) // 4
            table[:first] = [0] * first
    pages.attention.prepare(batch_of([(0, 1), (1, 1)], [40, 5], [pages.change(slot) for slot in (0, 1)]))
    pages.storage.keys[:, 0] = pages.storage.values[:, 0] = float("nan")
    for spans in ([(0, 1), (1, 1)], [(0, 3), (1, 1)], [(1, 2), (0, 1)]):
        assert near(pages.step(*spans), pages.right(*spans))


def test_wiping_any_page_wipes_page_0():
    pages = Pages(SHAPES["tiny-llama"])
    pages.storage.keys[:, 0] = pages.storage.values[:, 0] = float("nan")
    pages.step((0, 2), wiped=(5,))
    assert not pages.storage.keys[:, 0].any() and not pages.storage.values[:, 0].any()


def test_a_block_table_that_is_full_takes_no_page_into_the_next_ones_place():
    """Not even where Python leaves asserts out: it would be another sequence's table that is written."""
    attention = Pages(SHAPES["tiny-llama"]).attention
    _, _, longest = attention.tables.shape
    attention.update_tables([(1, TableChange(longest - 1, ((7,),)))])
    before = attention.tables.clone()
    with pytest.raises(ValueError, match=rf"slot 1 has {longest + 1} pages, .* room for {longest}"):
        attention.update_tables([(1, TableChange(longest - 1, ((7, 8),)))])
    assert torch.equal(attention.tables, before)


def test_two_sequences_may_share_pages():
    pages = Pages(SHAPES["tiny-llama"])
    pages.step((0, 8))
    pages.tables[1] = [table[:] for table in pages.tables[0]]
    pages.history[1] = [part.clone() for part in pages.history[0]]
    for spans in ([(1, 5), (0, 1)], [(0, 1), (1, 1)]):
        for slot, _ in spans:
            pages.attention.tables[0, slot, :2] = torch.tensor(pages.tables[slot][0][:2])
        assert near(pages.step(*spans), pages.right(*spans))


def test_without_a_gather_a_decode_is_the_same_bits_in_any_batch():
    pages = Pages(SHAPES["tiny-gemma3"])
    pages.step((0, 30), (1, 7), (2, 19))
    together = pages.step((1, 1), (0, 1), (2, 1))
    q, k, v = (part[:, -1:] for part in pages.history[0])
    pages.attention.prepare(batch_of([(0, 1)], [30], [None]))
    for layer, rows in enumerate(together):
        assert torch.equal(pages.attention.attend(layer, q[layer], k[layer], v[layer])[0], rows[1])


def test_narrow_types_are_gathered():
    pages = Pages(SHAPES["tiny-llama"], dtype=torch.bfloat16, decodes=GatheredDecodes)
    pages.step((0, 9), (1, 3))
    assert near(pages.step((0, 1), (1, 1)), pages.right((0, 1), (1, 1)), tolerance=0.03)
    for dtype, kind in ((torch.bfloat16, GatheredDecodes), (torch.float32, SparseDecodes)):
        storage = PagedStorage(SHAPES["tiny-llama"], 4, 4, dtype, torch.device("cpu"))
        assert isinstance(PagedAttention(SHAPES["tiny-llama"], storage, 1).decodes, kind)


def test_the_check_notices_a_table_that_is_one_page_off():
    pages = Pages(SHAPES["tiny-llama"])
    pages.step((0, 9))
    pages.attention.tables[0, 0] = pages.attention.tables[0, 0].roll(1)
    assert not near(pages.step((0, 1)), pages.right((0, 1)))
