"""The promises of p05's second tier: an evicted page is found again in host memory, until it is the least useful one.

Most tests drive the cache alone. Pages have 4 positions. Where a model would compute a page, the tests store a number
on it, made from its own tokens, all tokens before it, and the salt.
"""

import zlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.config.options import EngineOptions
from gradus.course.probe import EngineProbe
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.models.shapes import SHAPES
from phases.p04_paged_cache.attention import PageTensors
from phases.p05_prefix_cache import tiers
from phases.p05_prefix_cache.radix import page_keys
from tests.phases.conftest import build_engine, limits_of, of, tiny_model
from tests.phases.drive import parting, run, steps, submit

PAGE = 4
CONFIG = SHAPES["tiny-llama"]
A, B, C = ([first + i for i in range(12)] for first in (100, 200, 300))  # three whole pages each


MEMORY: WeakKeyDictionary[Any, PageTensors] = WeakKeyDictionary()
"""The tensors that each cache was given."""


def cache_of(pages: int, host_pages: int) -> Any:
    storage = PageTensors(CONFIG, pages, PAGE, torch.float32, torch.device("cpu"))
    cache = tiers.TieredCache(pages, PAGE, storage, host_pages)
    MEMORY[cache] = storage
    return cache


def evict_all(cache: Any) -> None:
    """Evict every page, where no sequence runs."""
    while cache.tiers()[0]:
        cache.evict()


def number(tokens: Sequence[int], salt: object) -> float:
    """Make the number that is stored on the last page of `tokens`."""
    return float(zlib.crc32(repr((salt, list(tokens))).encode()) % 65_521)


def begin(cache: Any, name: str, tokens: list[int], salt: object = None) -> int:
    """Let a sequence find what it can and compute the rest; its pages must hold its own numbers then."""
    found = cache.admit(name, tokens, salt)
    assert cache.reserve(name, len(tokens)), "the test leaves room for its sequences"
    cache.check()
    storage = MEMORY[cache]
    for place, page in enumerate(cache.block_tables[name]):
        expected = number(tokens[: (place + 1) * PAGE], salt)
        for layer in (*storage.keys, *storage.values):
            if place >= found // PAGE:
                layer[page] = expected
            there = layer[page].unique().tolist()
            assert there == [expected], (
                f"page {place} of {name} holds keys and values of other tokens, {there} for {[expected]}"
            )
    cache.publish(name, tokens, salt)
    cache.check()
    return found


def serve(cache: Any, tokens: list[int], salt: object = None, name: str = "a sequence") -> int:
    """Run a sequence to its end. Returns how many positions it found."""
    found = begin(cache, name, tokens, salt)
    cache.release(name)
    cache.check()
    return found


@of("p05")
def test_an_evicted_page_is_found_again(phase):
    cache = cache_of(pages=4, host_pages=8)
    serve(cache, [*A, 1])
    serve(cache, [*B, 1])
    found = serve(cache, [*A, 1])
    assert found == 12, f"b's four pages moved a's three down, where a finds its 12 tokens again; yours finds {found}"


@of("p05")
def test_a_page_comes_back_with_the_keys_and_values_that_it_had(phase):
    """Meanwhile the page has belonged to another sequence. (`begin` compares the numbers.)"""
    cache = cache_of(pages=4, host_pages=12)
    for _ in range(3):
        for tokens in (A, B, C):
            serve(cache, [*tokens, 1])


@of("p05")
def test_pages_move_down_as_copies(phase):
    storage = MEMORY[cache_of(pages=2, host_pages=2)]
    storage.keys[1][2] = 5.0
    kept = tiers.copy_out(storage, 2)
    storage.keys[1][2] = 6.0
    wanted = len(storage.keys) + len(storage.values)
    assert len(kept) == wanted, f"keys and values of each layer are {wanted} tensors; yours are {len(kept)}"
    (held,) = kept[1].unique().tolist()
    assert held == 5.0, f"the page held 5 when it was copied, and 6 was written to it after: 5; yours has {held:g}"


@of("p05")
def test_host_memory_holds_no_more_pages_than_it_has_room_for(phase):
    cache = cache_of(pages=4, host_pages=2)
    for tokens in (A, B, C, A, B, C):
        serve(cache, [*tokens, 1])
        held = len(cache.host)
        assert held <= 2, f"host memory has room for 2 pages; yours holds {held}"


@of("p05")
def test_without_host_memory_an_evicted_page_is_gone(phase):
    cache = cache_of(pages=4, host_pages=0)
    serve(cache, [*A, 1])
    serve(cache, [*B, 1])
    found = serve(cache, [*A, 1])
    assert found == 0 and not cache.host, f"with room for 0 pages below nothing is found; yours finds {found}"


@of("p05")
def test_ends_of_paths_leave_a_full_host_first(phase):
    cache = cache_of(pages=4, host_pages=2)
    serve(cache, [*A, 1])
    serve(cache, [*B, 1])
    found = serve(cache, [*A, 1])
    assert found == 8, f"below is room for two of a's three pages, the first two: it finds 8 tokens; yours {found}"


@of("p05")
def test_making_room_for_a_page_pushes_out_none_that_is_about_to_come_up(phase):
    """Both tiers are full: b's four pages are above, a's three below. For each that comes up, one moves down."""
    cache = cache_of(pages=4, host_pages=3)
    serve(cache, A)
    serve(cache, [*B, 1, 2, 3, 4])
    found = serve(cache, [*A, 1])
    assert found == 12, f"a's pages come up in exchange for b's, so a finds all its 12 tokens; yours finds {found}"


@of("p05")
def test_a_hit_below_makes_a_page_the_most_recently_used(phase):
    """Room for 6 pages below: a's and b's. a is used again before c's pages come down, so b's leave."""
    cache = cache_of(pages=4, host_pages=6)
    for tokens in (A, B, C, A, [i + 400 for i in A]):
        serve(cache, [*tokens, 1])
    found = {name: serve(cache, [*tokens, 1]) for name, tokens in (("a", A), ("b", B))}
    wanted = {"a": 12, "b": 0}
    assert found == wanted, f"a was used after b, so b leaves first, and {wanted} are found; yours: {found}"


@of("p05")
def test_a_fetched_page_is_in_the_tree_again(phase):
    cache = cache_of(pages=8, host_pages=8)
    serve(cache, [*A, 1])
    evict_all(cache)
    begin(cache, "first", [*A, 1])
    fetched = cache.fetched_positions
    begin(cache, "second", [*A, 2])
    tables = cache.block_tables["first"][:3], cache.block_tables["second"][:3]
    assert tables[0] == tables[1], f"the second sequence finds the first one's pages in the tree; yours have {tables}"
    assert cache.fetched_positions == fetched == 12, "what is in the tree is not fetched again"


@of("p05")
def test_a_page_is_in_one_tier_at_a_time(phase):
    cache = cache_of(pages=8, host_pages=8)
    serve(cache, [*A, 1])
    evict_all(cache)
    tree = len(cache.index.owners)
    assert (tree, len(cache.host)) == (0, 3), "three pages have moved down"
    serve(cache, A)  # the last token is always computed, and with it the third page
    tree, below = len(cache.index.owners), len(cache.host)
    assert (tree, below) == (3, 0), (
        f"two pages were fetched and the third was computed again: 3 in the tree, 0 below; yours {(tree, below)}"
    )


@of("p05")
def test_a_page_that_two_sequences_computed_at_once_gets_one_name(phase):
    cache = cache_of(pages=8, host_pages=8)
    for name in ("first", "second"):
        cache.admit(name, [*A, 1], None)
        cache.reserve(name, 13)
    for name in ("first", "second"):
        cache.publish(name, [*A, 1], None)
    named, known = sorted(cache.names), sorted(cache.index.owners)
    assert named == known, f"the second sequence takes the first one's pages, {known}; yours has names for {named}"


@of("p05")
def test_tenants_with_different_salts_share_nothing_below(phase):
    for salts in (("x", "y"), ("x", None), (None, "x")):
        cache = cache_of(pages=4, host_pages=12)
        serve(cache, [*A, 1], salts[0])
        serve(cache, [*B, 1], salts[0])
        found = serve(cache, [*A, 1], salts[1])
        assert found == 0, f"with the salts {salts} nothing is shared: 0 tokens; yours finds {found}"
        serve(cache, [*B, 1], salts[1])
        found = serve(cache, [*A, 1], salts[0])
        assert found == 12, f"with its own salt a finds its 12 tokens; yours finds {found}"


@of("p05")
def test_a_page_below_is_found_only_behind_the_pages_that_it_was_computed_behind(phase):
    cache = cache_of(pages=4, host_pages=12)
    serve(cache, [*A, 1])
    serve(cache, [*B, 1])
    found = serve(cache, [*C[:4], *A[4:], 1])
    assert found == 0, f"a's second page behind another first one has other keys: 0 tokens; yours finds {found}"
    found = serve(cache, [*A[4:], 1])
    assert found == 0, f"a's second page at the beginning of a prompt has other keys: 0; yours finds {found}"


@of("p05")
def test_names_of_pages_differ_where_anything_before_them_does(phase):
    paths = [page_keys(tokens, PAGE, salt) for tokens, salt in
             ((A, None), (A, "x"), ([*C[:4], *A[4:]], None), ([*A[4:], *A[:4]], None))]  # fmt: skip
    named = [list(tiers.names(keys)) for keys in paths]
    assert [len(each) for each in named] == [3, 3, 3, 3], "each page of a path has a name"
    assert len({name for each in named for name in each}) == 12, "four paths without a common beginning have 12 names"
    assert list(tiers.names(paths[0][:2])) == named[0][:2], "what comes after a page does not change its name"


@of("p05")
def test_a_hit_below_leaves_the_last_token_to_compute(phase):
    cache = cache_of(pages=4, host_pages=8)
    serve(cache, A)
    serve(cache, B)
    serve(cache, [*C, 1])
    found = serve(cache, A)
    assert found == 8, f"a hit ends before the last token, whose row gives the logits: 8 of 12; yours finds {found}"


@of("p05")
def test_a_page_that_is_not_full_is_found_in_no_tier(phase):
    cache = cache_of(pages=4, host_pages=8)
    serve(cache, A[:11])
    serve(cache, [*B, 1])
    found = serve(cache, [*A, 1])
    assert found == 8, f"a's first 11 tokens fill two pages: 8; yours finds {found}"
    cache = cache_of(pages=4, host_pages=8)
    cache.admit("a", A, None)
    cache.reserve("a", 7)  # a chunk: the second page has three of its tokens
    cache.publish("a", A, None)
    named = len(cache.names)
    assert named == 1, f"a has stored 7 of its 12 tokens, and one full page gets a name; yours gave {named}"


@of("p05")
def test_no_more_pages_are_fetched_than_the_pool_has_room_for(phase):
    """A running sequence holds four of the six pages, so two of a's three can come up."""
    cache = cache_of(pages=6, host_pages=8)
    serve(cache, [*A, 1])
    evict_all(cache)
    begin(cache, "running", [*B, 1])
    found = cache.admit("a", [*A, 1], None)
    assert found == 8, f"two pages are left for a, and the third stays below: 8; yours finds {found}"
    cache.check()
    cache.release("a")
    cache.release("running")
    cache.check()
    found = serve(cache, [*A, 1])
    assert found == 12, f"with room for it, the third comes up as well: 12; yours finds {found}"


@of("p05")
def test_found_and_fetched_positions_are_counted(phase):
    cache = cache_of(pages=6, host_pages=8)
    serve(cache, [*A, 1])
    cache.evict()  # a's last full page
    serve(cache, [*A, 1, 2])
    usage = cache.usage()
    counted = usage.queried_positions, usage.hit_positions, cache.fetched_positions
    assert counted == (27, 12, 4), f"27 looked up, 12 found, 4 of them below: (27, 12, 4); yours counted {counted}"


@of("p05")
def test_forgetting_empties_both_tiers(phase):
    cache = cache_of(pages=4, host_pages=8)
    serve(cache, [*A, 1])
    serve(cache, [*B, 1])
    cache.forget()
    assert not cache.host and serve(cache, [*A, 1]) == serve(cache, [*B, 1]) == 0


# -- as one line in the order of last use ---------------------------------------------------------------------------

TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=5)  # one number per page, 0 or 1, for its four tokens


@pytest.mark.hypothesis
@of("p05")
@given(
    asked=st.lists(st.tuples(TEXTS, st.sampled_from([None, "x"])), min_size=1, max_size=40),
    pages=st.integers(6, 12),
    host_pages=st.integers(0, 8),
)
def test_both_tiers_are_one_line_in_the_order_of_last_use(phase, asked, pages, host_pages):
    """A plain list says what is found: the last used pages, as many as both tiers hold next to the running sequence."""
    cache, line = cache_of(pages, host_pages), []
    for number, (text, salt) in enumerate(asked):
        tokens = [*(4 * kind + i for kind in text for i in range(PAGE)), 99]
        path = [(salt, *text[: place + 1]) for place in range(len(text))]
        known = next((place for place, name in enumerate(path) if name not in line), len(path))
        found = serve(cache, tokens, salt)
        assert found == known * PAGE, f"request {number} finds {known * PAGE} tokens; yours finds {found}"
        others = [name for name in line if name not in path]
        room = pages - len(path) - 1 + host_pages
        line = [*others[max(0, len(others) - room) :], *reversed(path)]


# -- in an engine ------------------------------------------------------------------------------------------------------


def engine_of(shape: str, pages: int, host_pages: int, max_sequences: int = 3) -> Any:
    options = EngineOptions(limits_of(shape), max_sequences, page_size=PAGE, cache_tokens=pages * PAGE)
    return tiers.build(tiny_model(shape), options, host_pages)


def ask(shape: str, name: str, prompt: Sequence[int], max_tokens: int, salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request.create(name, prompt, params, limits_of(shape), SchedulingParams(cache_salt=salt))


def conversations(shape: str) -> list[Request]:
    """Three conversations of two turns each, in a pool that holds about one of them."""
    texts = [[(7 * i + 31 * who) % 90 for i in range(26)] for who in range(3)]
    return [
        ask(shape, f"{who} {turn}", texts[who][: 14 + 12 * turn], 3, "x" if who == 2 else None)
        for turn in range(2)
        for who in range(3)
    ]


@of("p05")
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_with_pages_from_below_an_engine_gives_the_same_tokens(phase, shape):
    engine = engine_of(shape, pages=9, host_pages=12)
    done = run(engine, conversations(shape))
    alone = run(build_engine("p01", shape), conversations(shape))
    for request in conversations(shape):
        found, wanted = done[request.id, 0].tokens, alone[request.id, 0].tokens
        assert found == wanted, parting(request.prompt, found, wanted)
    assert EngineProbe(engine).cache.fetched_positions >= 24, "the first turns' pages were fetched"


@of("p05")
def test_a_preempted_sequence_comes_back_from_below(phase):
    """Two sequences of up to 6 pages in a pool of 8: b gives its pages up, and a's answer takes some of them."""
    engine = engine_of("tiny-llama", pages=8, host_pages=8)
    both = [ask("tiny-llama", name, prompt, 12) for name, prompt in (("a", A), ("b", B))]
    began = [step.of("b") for step in steps(submit(engine, both)) if ("b", 0) in step.admitted]
    assert len(began) == 2, f"b starts, is preempted, and starts again; yours started {len(began)} times"
    start, count = began[1].start, began[1].count
    assert start >= 16 and count <= PAGE, (
        f"b's pages are all found again, in two tiers: it computes 4 tokens at most; yours {count} from {start} on"
    )
    assert EngineProbe(engine).cache.fetched_positions > 0, "some of them were fetched"
