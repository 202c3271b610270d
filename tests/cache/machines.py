"""Random use of pool, index and cache, each against a model simple enough to be believed."""

from collections import Counter
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradus.cache.paged import PagedCache
from gradus.cache.pool import DoubleFree, FreePageUsed, PageInUse, PagePool, PoolExhausted
from gradus.cache.radix import PrefixIndex
from tests.cache.memory import Memory, Sequence
from tests.cache.naive import Compared

WHICH = st.integers(0, 1000)  # an index, modulo the number of candidates
TOKENS = st.lists(st.integers(0, 1), max_size=12)  # two tokens: beginnings are shared all the time
HOW = st.sampled_from(["finish", "preempt", "poison"])
SALTS = st.sampled_from([None, None, None, "a"])


def raised(expected: type[Exception] | None, call, *arguments):
    """Return the result of a call that must raise `expected`, or nothing if that is None."""
    try:
        result = call(*arguments)
    except (DoubleFree, FreePageUsed, PageInUse, PoolExhausted) as error:
        assert type(error) is expected
        return None
    assert expected is None, f"{expected} was not raised"
    return result


class PoolMachine(RuleBasedStateMachine):
    """The pool against a count of references and a list of idle pages. Any page may be used, rightly or wrongly."""

    @initialize(count=st.integers(1, 8))
    def start(self, count):
        self.indexed: set[int] = set()
        self.pool = PagePool(count, self.indexed)
        self.references = Counter()
        self.idle: list[int] = []

    @property
    def free(self) -> set[int]:
        return set(range(1, self.pool.count + 1)) - set(+self.references) - set(self.idle)

    @rule(count=st.integers(1, 3))
    def take(self, count):
        free = self.free
        pages = raised(None if count <= len(free) else PoolExhausted, self.pool.take, count)
        if pages is not None:
            assert len(set(pages)) == count and free.issuperset(pages)
            self.references.update(pages)

    @rule(which=WHICH)
    def share(self, which):
        page = which % (self.pool.count + 1)
        raised(FreePageUsed if page in self.free | {0} else None, self.pool.share, page)
        if page not in self.free | {0}:
            self.references[page] += 1
            self.idle = [other for other in self.idle if other != page]

    @rule(which=WHICH)
    def hit(self, which):
        if self.idle:
            page = self.idle.pop(which % len(self.idle))
            self.pool.share(page)
            self.references[page] = 1

    @rule(which=WHICH)
    def drop(self, which):
        page = which % (self.pool.count + 1)
        held = self.references[page] > 0
        raised(None if held else DoubleFree, self.pool.drop, page)
        if held:
            self.references[page] -= 1
            if not self.references[page] and page in self.indexed:
                self.idle.append(page)

    @rule(which=WHICH)
    def index(self, which):
        held = sorted(+self.references)
        if held:
            self.indexed.add(held[which % len(held)])

    @rule(which=WHICH)
    def finish(self, which):
        """The last user of a page that the index knows goes."""
        held = sorted(+self.references)
        if held:
            page = held[which % len(held)]
            self.indexed.add(page)
            for _ in range(self.references.pop(page)):
                self.pool.drop(page)
            self.idle.append(page)

    @rule(count=st.integers(1, 3))
    def evict(self, count):
        pages = raised(None if self.idle else PoolExhausted, self.pool.oldest_idle, count)
        if self.idle:
            assert pages and pages == self.idle[: len(pages)], "the least recently used"
            self.indexed.difference_update(pages)
            self.pool.reclaim(*pages)
            del self.idle[: len(pages)]

    @rule(which=WHICH)
    def reclaim(self, which):
        page = which % (self.pool.count + 1)
        idle = page in self.idle
        raised(None if idle else PageInUse, self.pool.reclaim, page)
        if idle:
            self.idle.remove(page)
            self.indexed.discard(page)

    @invariant()
    def balanced(self):
        self.pool.check()
        assert set(self.pool.free) == self.free
        assert list(self.pool.idle) == self.idle
        assert self.pool.held == len(+self.references)
        assert self.pool.available == len(self.free) + len(self.idle)


class IndexMachine(RuleBasedStateMachine):
    """The radix tree against a dictionary: salt and tokens up to the end of a page → the page, for each layer group."""

    @initialize(size=st.integers(1, 3), windows=st.sampled_from([(None,), (None,), (None, None, 4), (3, 5)]))
    def start(self, size, windows):
        self.size, self.windows = size, windows
        self.index = PrefixIndex()
        self.index.attach(size, windows, 5000)
        self.known: dict = {}
        self.last_page = 0
        self.live: list[dict] = []
        self.texts: list[list[int]] = []

    def prefix(self, tokens, salt, pages):
        return salt, tuple(tokens[: pages * self.size])

    def longest(self, tokens, salt) -> int:
        """Find the longest hit by trying every length, the longest first."""
        for hit in range((len(tokens) - 1) // self.size, 0, -1):
            entries = [self.known.get(self.prefix(tokens, salt, pages + 1)) for pages in range(hit)]
            first = [0 if w is None else max(0, hit * self.size - w + 1) // self.size for w in self.windows]
            if all(e and e[group] for group, f in enumerate(first) for e in entries[f:]):
                return hit
        return 0

    @rule(tokens=TOKENS, salt=SALTS, other=WHICH, cut=st.integers(0, 30), gone=st.booleans())
    def arrive(self, tokens, salt, other, cut, gone):
        self.match(tokens, salt, other, cut, stays=True)
        self.insert(len(self.live) - 1, [], gone)

    @rule(tokens=TOKENS, salt=SALTS, other=WHICH, cut=st.integers(0, 30), stays=st.booleans())
    def match(self, tokens, salt, other, cut, stays):
        if self.texts:  # begin like another
            tokens = self.texts[other % len(self.texts)][:cut] + tokens
        cursor, tables = self.index.match(tokens, salt)
        hit = self.longest(tokens, salt)
        assert cursor.depth == hit
        for group, (table, window) in enumerate(zip(tables, self.windows, strict=True)):
            first = 0 if window is None else max(0, hit * self.size - window + 1) // self.size
            expected = [self.known[self.prefix(tokens, salt, pages + 1)][group] for pages in range(first, hit)]
            assert table == [0] * first + expected
        if stays:
            self.texts.append(tokens)
            self.live.append(dict(tokens=tokens, salt=salt, cursor=cursor, tables=tables, full=hit))

    @rule(which=WHICH, more=TOKENS, gone=st.booleans())
    def insert(self, which, more, gone):
        """A sequence goes on, and publishes; of its groups with a window but the last, perhaps not."""
        if not self.live:
            return
        sequence = self.live[which % len(self.live)]
        tokens, tables, salt, had = (sequence[name] for name in ("tokens", "tables", "salt", "full"))
        tokens += more
        full = len(tokens) // self.size
        expected = []
        for place in range(had, full):
            entry = self.known.setdefault(self.prefix(tokens, salt, place + 1), [0] * len(self.windows))
            for group, table in enumerate(tables):
                self.last_page += 1
                absent = gone and self.windows[group] is not None and group + 1 < len(tables)
                table.append(0 if absent else self.last_page)
                if table[-1] and entry[group]:
                    expected.append((group, place, entry[group]))
                entry[group] = entry[group] or table[-1]
        duplicates = self.index.insert(sequence["cursor"], tokens, tables, full)
        assert sorted(duplicates) == sorted(expected)
        for group, place, page in duplicates:
            tables[group][place] = page
        sequence["full"] = full

    @rule(ends=st.none() | WHICH, which=WHICH)
    def remove(self, ends, which):
        """Remove a page that no path holds; without a window, also all groups' pages at its place and after it."""
        if self.live and ends is not None:
            self.live.pop(ends % len(self.live))
        held = {self.prefix(s["tokens"], s["salt"], place + 1) for s in self.live for place in range(s["full"])}
        pages = [
            (page, group, prefix)
            for prefix, entry in self.known.items()
            for group, page in enumerate(entry)
            if page and prefix not in held
        ]
        if not pages:
            return
        page, group, prefix = pages[which % len(pages)]
        gone = [page]
        if self.windows[group] is None:
            salt, tokens = prefix
            below = [key for key in self.known if key[0] == salt and key[1][: len(tokens)] == tokens]
            gone = [page for key in below for page in self.known.pop(key) if page]
        else:
            self.known[prefix][group] = 0
        assert sorted(self.index.remove(page)) == sorted(gone)

    @invariant()
    def balanced(self):
        self.index.check()
        owned = {page for page, owner in enumerate(self.index.owners) if owner}
        assert owned == {page for entry in self.known.values() for page in entry if page}
        for sequence in self.live:
            for group, window in enumerate(self.windows):
                if window is None:
                    assert self.index.path(sequence["cursor"], group) == sequence["tables"][group][: sequence["full"]]


class CacheMachine(RuleBasedStateMachine):
    """The cache against the memory: whatever happens, every query reads what its own sequence stored."""

    WINDOWS: ClassVar = [(None,), (None,), (None, 3), (None, None, 5, 2), (4, 6), (2,), (1, 7)]

    @initialize(
        pages=st.one_of(st.integers(2, 16), st.integers(2, 64)),
        size=st.integers(1, 4),
        windows=st.sampled_from(WINDOWS),
        indexed=st.integers(0, 5),
    )
    def start(self, pages, size, windows, indexed):
        self.cache = PagedCache(pages, size, windows, PrefixIndex() if indexed else None)
        if indexed and None in windows:  # else a path can be evicted under a sequence, which has no simple model
            self.cache = Compared(self.cache)
        self.memory = Memory(size, windows)
        self.live: list[Sequence] = []
        self.texts: list[list[int]] = [[]]
        self.count = 0

    @rule(
        leaves=st.none() | WHICH,
        how=HOW,
        like=WHICH,
        cut=st.integers(0, 40),
        tail=TOKENS,
        salt=SALTS,
        counts=st.lists(st.integers(1, 16), max_size=3),
    )
    def admit(self, leaves, how, like, cut, tail, salt, counts):
        """Somebody leaves, and a request comes that begins like another or goes on where it ended; its first spans."""
        if leaves is not None:
            self.leave(leaves, how)
        tokens = [*self.texts[like % len(self.texts)][:cut], *tail, 1]
        self.count += 1
        sequence = Sequence(self.cache, self.memory, self.count, tokens, salt)
        assert sequence.hit == sequence.stored < len(tokens)
        assert sequence.hit % self.cache.page_size == 0
        self.live.append(sequence)
        self.texts.append(tokens)  # it grows with the answer
        for count in counts:
            self.run(sequence, count)

    @rule(which=WHICH, count=st.integers(1, 16), publish=st.booleans())
    def step(self, which, count, publish):
        """One span; it may be published only later, as when steps overlap."""
        if self.live:
            self.run(self.live[which % len(self.live)], count, publish)

    @rule(counts=st.lists(st.integers(1, 16), min_size=1, max_size=4))
    def everybody(self, counts):
        """Extend every sequence by one span, several times; a sequence without room leaves."""
        for count in counts:
            for sequence in list(self.live):
                if not self.run(sequence, count):
                    self.leave(self.live.index(sequence), how="finish")
                self.cache.check()

    def run(self, sequence, count, publish=True) -> bool:
        before = sequence.stored
        if sequence.step(count, publish):
            return True
        end, size = min(before + count, len(sequence.tokens)), self.cache.page_size
        entries = -(-end // size) - -(-before // size)
        assert entries * len(self.cache.windows) > self.cache.available, "refused, though there was room"
        assert sequence.stored == before
        return False

    @rule(which=WHICH, how=HOW)
    def leave(self, which, how):
        """Done; or dropped, to come back with what it had sampled; or ended by a step that was not finite."""
        if not self.live:
            return
        sequence = self.live.pop(which % len(self.live))
        poisoned = how == "poison" and sequence.step(3, poisoned=True)
        sequence.release(poisoned)
        assert self.cache.stored(sequence.id) == 0
        self.cache.release(sequence.id)  # a sequence never seen is no mistake
        if how == "preempt":
            self.live.append(Sequence(self.cache, self.memory, sequence.id, sequence.tokens, sequence.salt))

    @invariant()
    def balanced(self):
        self.cache.check()
        usage = self.cache.usage()
        assert usage.free + usage.idle + usage.held == usage.pages
        mapped = {page for s in self.live for table in self.cache.residents[s.id].tables for page in table if page}
        assert not mapped & set(self.cache.pool.free) and usage.held == len(mapped)
        assert 0 <= usage.stored_positions <= usage.held * usage.page_size

    def teardown(self):
        if hasattr(self, "cache"):
            for sequence in self.live:
                sequence.release()
            self.cache.check()
            assert self.cache.available == self.cache.pool.count, "every page is free or idle once nobody is left"
