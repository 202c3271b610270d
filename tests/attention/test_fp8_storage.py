"""Attention over keys and values of 8 bits: exactly attention over what 8 bits keep of them, however they came."""

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.gathered import GatheredDecodes
from gradus.attention.paged import PagedAttention
from gradus.attention.whole import WholeSequence
from gradus.models.shapes import SHAPES
from gradus.quantization.kv import rounded
from tests.attention.test_paged_attention import CONFIGS, Pages, batch_of, near

TYPES = (torch.float32, torch.bfloat16)


class Fp8Pages(Pages):
    kind = Fp8Storage

    def __init__(self, config, page_size: int = 4, dtype=torch.float32) -> None:
        super().__init__(config, page_size, GatheredDecodes, dtype)

    def right(self, *spans):
        """Return the expected results from the stored values: rounding them again changes nothing."""
        self.history = {slot: [q, rounded(k), rounded(v)] for slot, (q, k, v) in self.history.items()}
        return super().right(*spans)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", CONFIGS)
def test_any_mixture_of_spans_attends_to_what_is_kept(name, page_size):
    pages = Fp8Pages(CONFIGS[name], page_size)
    steps = [[(2, 9)], [(2, 1), (0, 5)], [(0, 1), (1, 3), (2, 1), (3, 11)], [(1, 2), (3, 6), (0, 1)], [(3, 1), (1, 1)]]
    for spans in steps:
        assert near(pages.step(*spans), pages.right(*spans))


def test_it_is_not_attention_to_what_came():
    """Otherwise the tests here would pass with storage that rounds nothing."""
    pages = Fp8Pages(SHAPES["tiny-llama"])
    found = pages.step((0, 9))
    assert not near(found, Pages.right(pages, (0, 9)), tolerance=1e-3)
    assert near(found, Pages.right(pages, (0, 9)), tolerance=0.3)


def test_a_prompt_whole_in_chunks_and_behind_a_prefix_gives_the_same():
    """Compare shared pages and three chunks with the whole prompt: attention to unrounded keys would differ."""
    whole, chunked = Fp8Pages(SHAPES["tiny-gemma3"]), Fp8Pages(SHAPES["tiny-gemma3"])
    whole.step((0, 30))
    q, k, v = whole.history[0]
    together = [whole.attention.attend(layer, q[layer], k[layer], v[layer]) for layer in range(len(q))]
    chunked.grow(0, 30)
    found = []
    for start, end in ((0, 12), (12, 13), (13, 30)):
        chunked.attention.prepare(batch_of([(0, end - start)], [start], [chunked.change(0)]))
        rows = slice(start, end)
        found.append([chunked.attention.attend(n, q[n, rows], k[n, rows], v[n, rows]) for n in range(len(q))])
    assert near([torch.cat(parts) for parts in zip(*found, strict=True)], together)


def test_a_sequence_read_whole_attends_to_the_same():
    """Read the sequence as `gradus bench quality` does."""
    pages = Fp8Pages(SHAPES["tiny-gemma3"])
    found = pages.step((0, 21))
    whole = WholeSequence(pages.config, fp8=True)
    parts = zip(*pages.history[0], strict=True)
    assert near(found, [whole.attend(layer, q, k, v) for layer, (q, k, v) in enumerate(parts)])


def test_bfloat16_reads_what_float32_reads():
    """4 bits times a power of two: exact in both."""
    stores = [Fp8Storage(SHAPES["tiny-llama"], 4, 4, dtype, torch.device("cpu")) for dtype in TYPES]
    config, rows = SHAPES["tiny-llama"], torch.tensor([5, 9, 18])
    k, v = torch.randn(2, 3, config.num_kv_heads, config.head_dim).bfloat16()
    seen = [torch.stack(store.store(1, rows, k.to(store.dtype), v.to(store.dtype))) for store in stores]
    again = [torch.stack(store.read(1, rows)) for store in stores]
    for found, dtype in zip((*seen, *again), TYPES * 2, strict=True):
        assert found.dtype == dtype and torch.equal(found.float(), seen[0])


def test_a_position_and_a_head_have_their_own_scales():
    config = SHAPES["tiny-llama"]
    store = Fp8Storage(config, 4, 4, torch.float32, torch.device("cpu"))
    heads = config.num_kv_heads
    k = torch.ones(2, heads, config.head_dim) * 2.0 ** torch.arange(2 * heads).view(2, heads, 1)
    store.store(0, torch.tensor([6, 19]), k, 16 * k)  # page 1, position 2, and page 4, position 3
    keys, values = store.scales(0)
    assert keys.shape == (5, heads, 4) and torch.equal(values[1, :, 2], 16 * keys[1, :, 2])
    assert keys[1, :, 2].log2().tolist() == [-8.0 + head for head in range(heads)]
    assert keys[4, :, 3].log2().tolist() == [-8.0 + heads + head for head in range(heads)]
    assert keys.count_nonzero() == values.count_nonzero() == 2 * heads


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_stays_in_its_own_sequence_until_its_pages_are_wiped(broken, part):
    pages = Fp8Pages(SHAPES["tiny-llama"])
    pages.step((0, 6), (1, 7))
    batch = batch_of([(0, 1), (1, 1)], [6, 7], [None, None])
    q, k, v = (pages.noise(2, heads, pages.config.head_dim) for heads in _heads(pages.config))
    (k if part == "key" else v)[1, 0, 3] = broken
    pages.attention.prepare(batch)
    found = pages.attention.attend(0, q, k, v)
    assert found[0].isfinite().all() and found[1].isnan().any()
    used = pages.tables[1][0][:]
    pages.forget(1)
    pages.free = used
    pages.forget(0)
    assert near(pages.step((1, 5), wiped=tuple(used)), pages.right((1, 5)))
    assert near(pages.step((1, 1)), pages.right((1, 1)))
    for part in pages.storage.tensors:
        assert part.float().isfinite().all()


def _heads(config) -> tuple[int, int, int]:
    return config.num_heads, config.num_kv_heads, config.num_kv_heads


def test_page_0_is_nobodys():
    pages = Fp8Pages(SHAPES["tiny-gemma3"])
    pages.step((0, 9), (1, 1))
    pages.step((0, 1), (1, 2))
    for part in pages.storage.tensors:
        assert not part[:, 0].float().any()


def test_a_nan_in_page_0_reaches_no_sequence_and_is_wiped_with_any_page():
    pages = Fp8Pages(SHAPES["tiny-llama"])
    pages.step((0, 9), (1, 2))
    everything = pages.storage.tensors
    for part in everything:
        part[:, 0] = float("nan")
    assert near(pages.step((0, 1), (1, 1)), pages.right((0, 1), (1, 1)))
    pages.step((0, 1), wiped=(5,))
    assert not any(part[:, 0].float().any() for part in everything)


def test_half_precision_and_single_take_the_same_bytes():
    config = SHAPES["tiny-llama"]
    sizes = {Fp8Storage(config, 4, 4, dtype, torch.device("cpu")).nbytes for dtype in TYPES}
    assert sizes == {2 * config.num_layers * 5 * 4 * config.num_kv_heads * (config.head_dim + 4)}


def test_decodes_are_gathered():
    """The sparse ones read floats where they lie."""
    storage = Fp8Storage(SHAPES["tiny-llama"], 4, 4, torch.float32, torch.device("cpu"))
    assert isinstance(PagedAttention(SHAPES["tiny-llama"], storage, 1).decodes, GatheredDecodes)
