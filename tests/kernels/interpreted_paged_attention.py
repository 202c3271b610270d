"""The paged attention kernels on the CPU, in Triton's interpreter.

test_paged_attention.py runs this in a process of its own: whether Triton interprets is decided when it is imported.
Tiny on purpose, for a program takes the interpreter tens of milliseconds.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.cache import TableChange
from gradus.engine.plan import Plan, Span
from gradus.execution.gpu.warm_up import padding_batch
from gradus.execution.layout import lay_out
from gradus.kernels.attention import paged as paged_attention
from gradus.kernels.attention.launch import HOPPER_LAUNCHES, Launch, launches
from gradus.kernels.attention.work import Work
from gradus.models.shapes import SHAPES
from tests.kernels.cases import Step

SMALL = Launch(rows=16, keys=16, warps=4, stages=2, live=1, processors=8)
LARGE = Launch(rows=64, keys=32, warps=4, stages=2, live=1, processors=8)
MIXED = [(1, 37), (3, 3), (0, 0), (20, 45), (1, 1), (1, 0)]  # decode, prefill, padding twice, a chunk, a first token


@pytest.mark.parametrize(
    "step",
    [
        Step(MIXED),
        Step(MIXED, window=7),
        Step(MIXED, softcap=1.5, page=24),
        Step([(22, 40), (1, 60)], group=3, head_dim=24),
        Step([(2, 90)], heads=1, group=5, head_dim=20, window=50, dtype=torch.float16),
        Step([(1, 40), (3, 20), (5, 5)], heads=1, group=16, head_dim=512),
        Step(MIXED, fp8=True),
        Step([(22, 40), (1, 60)], group=3, head_dim=24, page=24, window=7, softcap=1.5, fp8=True),
        Step(MIXED, sinks=True, window=7),
        Step([(22, 90), (1, 130), (1, 0)], group=8, heads=1, sinks=True),
        Step([(22, 40), (1, 60)], group=3, head_dim=24, sinks=True, fp8=True),
    ],
    ids=[
        "mixed", "window", "softcap", "odd group and width", "float16, split verification in a window",
        "heads of 512, all of which share keys", "fp8",
        "fp8, odd group and width, window, softcap", "sinks in a window", "sinks of splits", "sinks, fp8",
    ],
)  # fmt: skip
def test_the_kernels_attend_as_torch_does(step):
    found, expected = step.attend(SMALL, LARGE), step.expected()
    tolerance = 1e-5 if step.dtype == torch.float32 else 3e-3
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


def test_a_cache_of_more_values_than_32_bits_count_is_read_through_wider_offsets(monkeypatch):
    monkeypatch.setattr(paged_attention, "NEAR", 0)
    step = Step(MIXED)
    found, expected = step.attend(SMALL, LARGE), step.expected()
    assert (found.double() - expected).norm() <= 1e-5 * expected.norm()


IN_HALVES = [replace(launch, halves=True) for launch in (SMALL, LARGE)]
HALF = 2.0**-10  # float16 rounds the weights alone


def attended_in_halves(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """(found, expected) for queries of bfloat16, in float32, to which the interpreter rounds as a GPU does."""
    step.q = step.q.bfloat16().float()
    return step.attend(*IN_HALVES).double(), step.expected()


@pytest.mark.parametrize(
    "step",
    [
        Step(MIXED, fp8=True),
        Step([(22, 40), (1, 60)], group=3, head_dim=24, page=24, window=7, softcap=1.5, fp8=True),
        Step([(22, 40), (1, 60)], group=3, head_dim=24, sinks=True, fp8=True),
    ],
    ids=["mixed", "odd group and width, window, softcap", "sinks"],
)
def test_keys_and_values_of_8_bits_are_multiplied_in_float16(step):
    found, expected = attended_in_halves(step)
    assert (found - expected).norm() <= HALF * expected.norm()


@pytest.mark.parametrize("magnitude", [2.0**-60, 2.0**60], ids=["tiny", "huge"])
@pytest.mark.parametrize("part", ["queries", "values"])
def test_float16_does_not_bound_what_queries_and_values_may_be(part, magnitude):
    """Scores keep their size. Every 16th token's value is 2^30 times as large, and its scale with it."""
    step = Step([(1, 37), (1, 130), (3, 20)], fp8=True)
    if part == "queries":
        step.q *= magnitude
        step.scales[0].mul_(1 / magnitude)
    else:
        step.scales[1].mul_(magnitude)
        step.scales[1][:, :, 3] *= 2.0**30
    found, expected = attended_in_halves(step)
    assert (found - expected).norm() <= HALF * expected.norm()


def test_many_keys_of_little_weight_count_in_float16_too():
    """One key, whose value is 0, outweighs each of 400 others 2^20 times: what they weigh together is the result."""
    step = Step([(1, 401)], heads=1, group=1, fp8=True)
    step.q.zero_()[..., 0] = 1.0
    keys, values = torch.zeros(step.keys.shape), torch.ones(step.values.shape)
    first = step.tables[step.slots[0], 0]
    keys[first, 0, 0, 0], values[first, 0, 0] = 46.0, 0.0  # 0.3 · 46 is 20 · log 2, nearly
    step.keys, step.values = keys.to(step.keys.dtype), values.to(step.values.dtype)
    for part in step.scales:
        part.fill_(1.0)
    found, expected = attended_in_halves(step)
    assert 0 < expected.max() < 400 * 2.0**-18
    assert (found - expected).norm() <= HALF * expected.norm()


DECODES = [(1, 37), (1, 0), (1, 1), (1, 130), (1, 17)]  # a padded one, a first token, one at the start of a page
# with drafts: over the end of a page, none of them there, a sequence of new tokens alone, the tile's fullest
DRAFTED = [(3, 34), (1, 0), (1, 20), (2, 2), (4, 131), (5, 48)]


TURNED = {
    "plain": Step(DECODES),
    "window, odd group and width": Step(DECODES, window=16, group=3, head_dim=24),
    "softcap, float16": Step(DECODES, softcap=1.5, dtype=torch.float16),
    "fp8, window, odd group and width": Step(DECODES, window=16, group=3, head_dim=24, fp8=True),
    "drafts, softcap, float16": Step(DRAFTED, softcap=1.5, dtype=torch.float16),
    "drafts, a window shorter than they are, odd group and width": Step(DRAFTED, window=3, group=3, head_dim=24),
    "drafts": Step(DRAFTED),
    "drafts, fp8, odd group and width": Step(DRAFTED, group=3, head_dim=24, fp8=True),
    "sinks": Step(DECODES, group=8, heads=1, sinks=True),
    "drafts, sinks, window": Step(DRAFTED, window=16, sinks=True),
}


@pytest.mark.parametrize(
    ("step", "norms"),
    [  # every step runs, every other one with norms; `make stress` has the rest
        pytest.param(step, norms, id=f"{name}, norms: {norms}", marks=() if place % 2 == norms else pytest.mark.stress)
        for place, (name, step) in enumerate(TURNED.items())
        for norms in (True, False)
    ],
)
def test_decodes_turn_their_heads_and_store_what_is_new(step, norms):
    tolerance = 1e-5 if step.dtype == torch.float32 else 3e-3
    for found, expected in step.attend_to_new_tokens(SMALL, norms):
        torch.testing.assert_close(
            found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
        )  # fmt: skip


@pytest.mark.parametrize("spans", [DECODES, DRAFTED], ids=["decodes", "drafts"])
def test_new_tokens_follow_keys_that_are_multiplied_in_float16(spans):
    step = Step(spans, window=16, group=3, head_dim=24, fp8=True, sinks=True)
    (found, expected), *stored = step.attend_to_new_tokens(IN_HALVES[0], norms=True)
    assert (found.double() - expected).norm() <= 2 * HALF * expected.norm()  # queries were rounded, too
    for kept, wanted in stored:
        torch.testing.assert_close(kept.double(), wanted.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("step", "rotates"),
    [(Step(DECODES, window=16), True), (Step(DRAFTED), True), (Step(DRAFTED, fp8=True), False)],
    ids=["grown queries in a window", "with drafts", "with drafts, unrotated, fp8"],
)
def test_decodes_grow_queries_and_normalize_values(step, rotates):
    for found, expected in step.attend_to_new_tokens(SMALL, norms=rotates, rotates=rotates, more=True):
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("window", [None, 40])
def test_every_visible_key_is_in_exactly_one_item_of_its_tile(window):
    step = Step([(1, 300), (9, 9), (1, 20), (0, 0), (30, 150)], heads=1, window=window)
    work = step.work(Launch(rows=16, keys=16, warps=4, stages=2, live=1, processors=32))
    tiles = {}
    for row, tokens, position, slot, *part in work.items.tolist():
        if tokens:
            tiles.setdefault((row, tokens, position, slot), []).append(part)
    rows = [row + i for row, tokens, *_ in tiles for i in range(tokens)]
    assert sorted(rows) == list(range(step.query_start[-1]))  # each row in one tile
    places = []
    for (_, tokens, position, _), parts in tiles.items():
        parts.sort(key=lambda part: part[2])
        assert [part[2:] for part in parts] == [[n, len(parts), parts[0][4]] for n in range(len(parts))]
        covered = [key for low, high, *_ in parts for key in range(low, high)]
        assert covered == list(range(covered[0], position + tokens))
        assert covered[0] <= max(0, position - (window or 1 << 30) + 1)
        if len(parts) > 1:
            places += [partial + split for _, _, split, _, partial in parts]
    assert len(set(places)) == len(places) > 0 and max(places) < 2 * work.aim


@pytest.mark.parametrize("launch", [SMALL, HOPPER_LAUNCHES[128]], ids=["every GPU's", "Hopper's"])
def test_tiles_that_see_more_keys_than_31_bits_count_stay_whole(launch):
    """A prompt of 262,144 tokens in one step, 8 per tile, has 2^33. Its tiles are too many for a test."""
    tokens = launch.tokens(16)
    work = Work(launch, tiles=128, group=16, kv_heads=8, window=None, device=torch.device("cpu"))
    count, length = 128 * tokens, 1 << 24
    numbers = (torch.tensor(part, dtype=torch.int32) for part in ([0], [0, count], [length]))
    work.lay_out(*numbers, most=count)
    items = [item for item in work.items.tolist() if item[1]]
    assert sorted(row for row, *_ in items) == [*range(0, count, tokens)]
    assert all((low, high) == (0, position + tokens) for _, _, position, _, low, high, *_ in items)


@pytest.mark.parametrize("length, splits", [(64, 2), (1024, 4), (2048, 8), (4096, 16), (9000, 16)])
def test_a_lone_tile_is_split_more_once_its_splits_are_long(length, splits):
    work = Step([(1, length)], heads=1).work(Launch(rows=16, keys=16, warps=4, stages=2, live=4, processors=4))
    shares = [(low, high) for _, tokens, _, _, low, high, *_ in work.items.tolist() if tokens]
    assert len(shares) == splits and shares[-1][1] == length
    assert all(end == low for (_, end), (low, _) in pairwise(shares))


@pytest.mark.parametrize("live, tiles", [(4, 8), (3, 8), (4, 5), (3, 11), (2, 20), (4, 33), (4, 66), (4, 100)])
def test_equal_tiles_get_no_more_items_than_run_at_once_and_no_fewer_than_that_takes(live, tiles):
    """Heads of Llama on an H100: an item is 8 programs, of which `live` fit each of 132 multiprocessors."""
    at_once = live * 132 // 8
    work = decodes_at([32_000] * tiles, Launch(rows=16, keys=16, warps=4, stages=2, live=live, processors=132))
    count = sum(item[1] > 0 for item in work.items.tolist())
    assert work.aim == at_once and count == max(1, at_once // tiles) * tiles


def test_a_long_sequence_among_short_ones_is_split_into_its_share_of_what_runs_at_once():
    """66 items of 576 keys hold all 38,000. Short ones, which fit one each, leave it as many parts as before."""
    work = decodes_at([500] * 8 + [34_000], Launch(rows=16, keys=16, warps=4, stages=2, live=4, processors=132))
    assert max(item[7] for item in work.items.tolist()) == 60


@pytest.mark.parametrize("keys, splits", [(513, 9), (1024, 11), (8192, 32), (32_000, 63)])
def test_a_tile_is_split_no_further_than_adding_the_results_up_takes_as_long_as_attending(keys, splits):
    """One key head leaves 528 programs to one tile. Of 32,000 keys, 63 parts have 508 each, as long as adding 63 up."""
    work = decodes_at([keys], Launch(rows=16, keys=16, warps=4, stages=2, live=4, processors=132), kv_heads=1)
    assert max(item[7] for item in work.items.tolist()) == splits


def decodes_at(lengths: list[int], launch: Launch, kv_heads: int = 8) -> Work:
    """Lay out a decode of each length."""
    step = Step([(1, 1)] * len(lengths))
    work = Work(launch, tiles=len(lengths), group=1, kv_heads=kv_heads, window=None, device=torch.device("cpu"))
    work.lay_out(*(step.numbers(part) for part in (step.slots, step.query_start, lengths)), most=1)
    return work


NARROW, WIDE = (launches(head_dim, torch.bfloat16, group=4) for head_dim in (64, 128))


@pytest.mark.parametrize(
    "launch, lengths, splits",
    [
        (NARROW[0], [384, 385], [1, 4]),
        (NARROW[1], [128, 129], [1, 2]),
        (NARROW[2], [64, 65], [1, 2]),
        (launches(64, torch.bfloat16, group=1)[0], [64, 65], [1, 2]),
        (WIDE[0], [64, 65, 384], [1, 2, 6]),
        (launches(64, torch.bfloat16, group=4, eight_bits=True)[0], [128, 129], [1, 2]),
    ],
    ids=[
        "narrow heads", "narrow heads, a tile of drafts", "narrow heads, a prompt's tile",
        "narrow heads without a group", "wide heads", "narrow heads in 8 bits",
    ],
)  # fmt: skip
def test_a_tile_of_decodes_with_narrow_heads_stays_whole_where_others_are_split(launch, lengths, splits):
    """On a GPU of 132 multiprocessors, with 8 key heads: one of `whole` keys is one program's, beside a longer one."""
    step = Step([(1, length) for length in lengths], heads=8, group=4)
    items = [item for item in step.work(launch).items.tolist() if item[1]]
    for slot, length, count in zip(step.slots, lengths, splits, strict=True):
        shares = [(low, high) for _, _, _, owner, low, high, *_ in items if owner == slot]
        assert len(shares) == count and (shares[0][0], shares[-1][1]) == (0, length)
        assert all(end == low for (_, end), (low, _) in pairwise(shares))


@pytest.mark.parametrize("storage", [PagedStorage, Fp8Storage])
@pytest.mark.parametrize("shape", ["tiny-gemma3", "tiny-gemma4-e"])
def test_the_backend_attends_as_the_torch_backend_does(shape, storage):
    """A prompt, then a chunk of another next to its decode, on pages of two layer groups, one with a window.

    Layers have heads of one size, or of two, and some read another layer's keys.
    """
    config = SHAPES[shape]
    one, two = TableChange(0, ((3, 1, 5), (2, 8, 4))), TableChange(0, ((6, 7, 9), (10, 11, 12)))
    steps = [
        Plan([Span(None, 2, 0, range(9), 1, one)]),
        Plan([Span(None, 2, 9, (0,), 1, None), Span(None, 0, 0, range(11), 0, two)], wiped=(6, 10)),
        Plan([Span(None, 0, 11, (0,), 1, None), Span(None, 2, 10, (0,), 1, None)]),
    ]
    backends = [
        kind(config, storage(config, 12, 4, torch.float32, torch.device("cpu")), slots=4)
        for kind in (PagedAttention, TritonPagedAttention, GraphPagedAttention)
    ]
    padding = backends[2]
    padding.sizes = (8, 16)
    generator = torch.Generator().manual_seed(0)
    for plan in steps:
        batch = lay_out(plan, torch.device("cpu"))
        for backend in backends:
            backend.prepare(batch)
        for layer in range(config.num_layers):
            sizes, rows = config.layer(layer), len(batch.positions)
            heads = [sizes.num_heads, *[sizes.num_kv_heads] * 2]
            q, k, v = (torch.randn(rows, count, sizes.head_dim, generator=generator) for count in heads)
            parts = (q, k, v) if config.stores_kv(layer) else (q, None, None)
            expected, found = (backend.attend(layer, *parts) for backend in backends[:2])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert padding.padded >= rows
            found = padding.attend(layer, *(part if part is None else padded(part, padding.padded) for part in parts))
            torch.testing.assert_close(found[:rows], expected, rtol=1e-4, atol=1e-5)
            assert not found[rows:].any(), "padding sees nothing"


def padded(part: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat([part, torch.ones(rows - len(part), *part.shape[1:])])


SPANS = [[32], [1] * 32, [1] * 9 + [23], [5, 5, 5, 5, 5], [4, 1, 3, 2, 6, 1], [7]]


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-gemma3", "tiny-gemma4"])
def test_a_padded_step_has_room_for_whatever_spans_it_has(shape):
    """Launches are those of the size alone, and each row is in exactly one tile of one of them."""
    config, device = SHAPES[shape], torch.device("cpu")
    backend = GraphPagedAttention(config, PagedStorage(config, 64, 4, torch.float32, device), slots=33)
    backend.sizes, launched = (32,), set()
    for counts in SPANS:
        backend.prepare(padding_batch(counts, 0, device))
        for works in backend.works.values():
            launched.add(tuple((work.launch, work.longest, work.items.data_ptr()) for work in works))
            items = torch.cat([work.items for work in works])
            rows = [row for item in items[items[:, 6] == 0].tolist() for row in range(item[0], item[0] + item[1])]
            assert sorted(rows) == list(range(32)), counts
    assert len(launched) == len(backend.works)
