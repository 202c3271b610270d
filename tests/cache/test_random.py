"""Pool, index and cache under random use, checked after every step; and broken ones, which must be noticed."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from gradus.cache.idle import IdlePages
from gradus.cache.paged import PagedCache
from gradus.cache.pool import PageError, PagePool
from gradus.cache.radix import Cursor, PrefixIndex
from tests.cache.machines import CacheMachine, IndexMachine, PoolMachine
from tests.cache.memory import Memory, Sequence
from tests.pairwise import first

LONG = pytest.mark.timeout(1200)  # `make stress`: a thousand examples of fifty steps each

TestPool = LONG(PoolMachine.TestCase)
TestIndex = LONG(IndexMachine.TestCase)
TestCache = LONG(CacheMachine.TestCase)

WINDOWS = st.sampled_from(CacheMachine.WINDOWS)


@given(
    pages=st.integers(1, 24),
    size=st.integers(1, 5),
    windows=WINDOWS,
    longest=st.integers(1, 9),
    length=st.integers(1, 60),
    spans=st.lists(st.integers(1, 9), max_size=60),
)
def test_what_fits_runs_alone_to_its_end_in_any_spans(pages, size, windows, longest, length, spans):
    cache = PagedCache(pages, size, windows, PrefixIndex())
    sequence = Sequence(cache, Memory(size, windows), "alone", [1] * length)
    if cache.fits(length, longest):
        for span in [*spans, *[longest] * length]:
            if sequence.stored < length:
                assert sequence.step(min(span, longest, length - sequence.stored))
                cache.check()
        assert sequence.stored >= length
    elif windows == (None,):
        assert not cache.reserve("alone", length), "without a window, what does not fit cannot run"


# -- broken ones -----------------------------------------------------------------------------------------------------

QUICKLY = settings(
    max_examples=4000,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a failure is what is wanted: no need to make it small
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def twice_freed(self, *pages):
    for page in pages:
        self.references[page] = max(0, self.references[page] - 1)
        if self.references[page] == 0:
            self.free.append(page)


def shared_though_free(self, *pages):
    self.idle.remove([page for page in pages if page in self.idle])
    for page in pages:
        self.references[page] += 1


def taken_while_held(self, count, oldest=PagePool.oldest_idle):
    return [max(self.indexed)] if self.indexed else oldest(self, count)


def reclaimed_while_held(self, *pages):
    self.idle.remove([page for page in pages if page in self.idle])
    for page in pages:
        self.references[page] = 0
        self.free.append(page)


def never_idle(self, *pages):
    for page in pages:
        self.references[page] -= 1
        if self.references[page] == 0 and page not in self.indexed:
            self.free.append(page)


def first_in_first_out(self, *pages, drop=PagePool.drop):
    before = list(self.idle)
    drop(self, *pages)
    self.idle.remove(before)
    self.idle.extend(before)


def idle_while_held(self, *pages, share=PagePool.share):
    were_idle = [page for page in pages if page in self.idle]
    share(self, *pages)
    self.idle.extend(were_idle)


def line_left_as_it_was(self):
    self._first = self._end = self._holes = 0


def gone_from_the_end(self, pages, trim=PrefixIndex.trim):
    return trim(self, pages[::-1])


def last_page_lost(self, id, poisoned=False):
    resident = self.residents.pop(id, None)
    if resident is not None:
        for page in (page for table in resident.tables for page in table[:-1] if page):
            self.pool.drop(page)


def released_from_the_front(self, id, poisoned=False):
    resident = self.residents.pop(id, None)
    if resident is not None:
        for page in (page for table in resident.tables for page in table if page):
            self.pool.drop(page)


def hit_without_a_reference(self, index, tokens, salt, hit=PagedCache._hit):
    resident = hit(self, index, tokens, salt)
    for page in (page for table in resident.tables for page in table if page):
        self.pool.drop(page)
    return resident


def given_back_by_the_end(self, resident, count, start, extend=PagedCache._extend):
    extended = extend(self, resident, count, start)
    if extended:
        self._give_back(resident, resident.room)
    return extended


def half_reserved(self, resident, count, start, extend=PagedCache._extend):
    extended = extend(self, resident, count, start)
    if not extended:
        extend(self, resident, 1, start)  # keeps what it gets
    return extended


def own_page_kept(self, id, tokens, end=0):
    resident = self.residents[id]
    if self.index is not None:
        full = min(len(tokens), resident.stored) // self.page_size
        self.index.insert(resident.cursor, tokens, resident.tables, full)


def published_unstored(self, id, tokens, end=0):
    resident = self.residents[id]
    if self.index is not None:
        full = min(len(tokens), resident.room) // self.page_size
        self.index.insert(resident.cursor, tokens, resident.tables, full)


def poison_left(self, resident):
    pass


def salt_forgotten(self, tokens, salt=None, match=PrefixIndex.match):
    return match(self, tokens, None)


def hit_to_the_last_token(self, tokens, salt=None, match=PrefixIndex.match):
    return match(self, [*tokens, 0], salt)


def gaps_unseen(self, found):
    return len(found[0])


def split_left_to_the_lower(self, node, depth, split=PrefixIndex._split):
    upper = split(self, node, depth)
    for page, owner in enumerate(self.owners):
        self.owners[page] = node.number if owner == upper.number else owner
    return upper


def cursor_left_below(self: Cursor) -> bool:
    return self.depth <= self.node.end


BROKEN = [
    (PoolMachine, PagePool, "drop", twice_freed),
    (PoolMachine, PagePool, "drop", never_idle),
    (PoolMachine, PagePool, "drop", first_in_first_out),
    (PoolMachine, PagePool, "share", shared_though_free),
    (PoolMachine, PagePool, "share", idle_while_held),
    (PoolMachine, PagePool, "oldest_idle", taken_while_held),
    (PoolMachine, PagePool, "reclaim", reclaimed_while_held),
    (PoolMachine, IdlePages, "_close_up", line_left_as_it_was),
    (IndexMachine, PrefixIndex, "match", salt_forgotten),
    (IndexMachine, PrefixIndex, "match", hit_to_the_last_token),
    (IndexMachine, PrefixIndex, "usable", gaps_unseen),
    (IndexMachine, PrefixIndex, "_split", split_left_to_the_lower),
    (IndexMachine, Cursor, "find", cursor_left_below),
    (CacheMachine, PagePool, "drop", twice_freed),
    (CacheMachine, PagePool, "drop", first_in_first_out),
    (CacheMachine, PagedCache, "release", last_page_lost),
    (CacheMachine, PagedCache, "release", released_from_the_front),
    (CacheMachine, PagedCache, "_hit", hit_without_a_reference),
    (CacheMachine, PagedCache, "_extend", given_back_by_the_end),
    (CacheMachine, PagedCache, "_extend", half_reserved),
    (CacheMachine, PagedCache, "publish", own_page_kept),
    (CacheMachine, PagedCache, "publish", published_unstored),
    (CacheMachine, PagedCache, "_poison", poison_left),
    (CacheMachine, PrefixIndex, "match", salt_forgotten),
    (CacheMachine, PrefixIndex, "match", hit_to_the_last_token),
    (CacheMachine, PrefixIndex, "usable", gaps_unseen),
]


# Found after a thousand examples, in half a minute; test_radix.py has the case by hand.
RARE = (CacheMachine, PrefixIndex, "trim", gone_from_the_end)


@pytest.mark.parametrize(
    "machine, owner, name, broken",
    first([*BROKEN, RARE], len(BROKEN)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_one_is_noticed(monkeypatch, machine, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    # by a check, by name, by zip(strict=True), or by a place that is not there
    with pytest.raises((AssertionError, PageError, ValueError, IndexError)):
        run_state_machine_as_test(machine, settings=QUICKLY)
