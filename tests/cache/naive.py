"""A prefix cache without a tree, a line or an array: dictionaries and lists, searched from end to end at every call.

It says what the real one has to do: which page is hit, which one is evicted, and in which order.
"""

from collections import Counter

from gradus.cache.inspection import TreeNode
from gradus.cache.paged import PagedCache


class NaiveCache:
    """A page is known by what is on it: its layer group, the salt, and every token up to its end."""

    def __init__(self, pages: int, size: int, windows: tuple[int | None, ...]) -> None:
        self.free, self.size, self.windows = pages, size, windows
        self.known: dict[tuple, int] = {}
        self.holders: Counter[int] = Counter()
        self.idle: list[int] = []
        self.live: dict = {}
        self.pages = self.evictions = 0

    def first(self, position: int, window: int | None) -> int:
        return 0 if window is None else max(0, position - window + 1) // self.size

    def content(self, group: int, salt, tokens, place: int) -> tuple:
        return group, salt, tuple(tokens[: (place + 1) * self.size])

    def admit(self, id, tokens, salt) -> int:
        hit = next(hit for hit in range((len(tokens) - 1) // self.size, -1, -1) if self.can_hit(hit, tokens, salt))
        tables = [
            [
                self.known[self.content(g, salt, tokens, p)] if p >= self.first(hit * self.size, w) else 0
                for p in range(hit)
            ]
            for g, w in enumerate(self.windows)
        ]
        for page in (page for table in tables for page in table if page):
            self.holders[page] += 1
            self.idle = [other for other in self.idle if other != page]
        self.live[id] = [salt, tables, hit * self.size, hit]
        return hit * self.size

    def can_hit(self, hit: int, tokens, salt) -> bool:
        return all(
            self.content(group, salt, tokens, place) in self.known
            for group, window in enumerate(self.windows)
            for place in range(self.first(hit * self.size, window), hit)
        )

    def reserve(self, id, end: int) -> bool:
        _, tables, stored, _ = self.live.setdefault(id, [None, [[] for _ in self.windows], 0, 0])
        more = -(-end // self.size) - len(tables[0])
        if more > 0:
            for table, window in zip(tables, self.windows, strict=True):
                for place in range(min(len(table), self.first(stored, window))):
                    if table[place]:
                        self.drop(table[place])
                        table[place] = 0
            if more * len(tables) > self.free + len(self.idle):
                return False
            while self.free < more * len(tables):
                self.evict()
            for table in tables:
                table += [self.take() for _ in range(more)]
        self.live[id][2] = end
        return True

    def take(self) -> int:
        self.free -= 1
        self.pages += 1
        self.holders[self.pages] = 1
        return self.pages

    def evict(self) -> None:
        contents = {page: content for content, page in self.known.items()}
        self.evictions += len(self.forget(contents[self.idle[0]]))

    def forget(self, content: tuple) -> list[int]:
        """What is of no use without it goes as well; of all that, idle pages are free."""
        group, salt, prefix = content
        gone = [content]
        if self.windows[group] is None:
            gone = [(g, s, text) for g, s, text in self.known if s == salt and text[: len(prefix)] == prefix]
        pages = [self.known.pop(content) for content in gone]
        self.free += sum(page in self.idle for page in pages)
        self.idle = [page for page in self.idle if page not in pages]
        return pages

    def drop(self, page: int) -> None:
        self.holders[page] -= 1
        if not self.holders[page]:
            if page in self.known.values():
                self.idle.append(page)
            else:
                self.free += 1

    def publish(self, id, tokens, end: int) -> None:
        salt, tables, stored, had = self.live[id]
        full = min(len(tokens), stored, end) // self.size
        for place in range(had, full):
            for group, table in enumerate(tables):
                content = self.content(group, salt, tokens, place)
                there = self.known.setdefault(content, table[place]) if table[place] else 0
                if there != table[place]:
                    self.holders[there] += 1
                    self.idle = [other for other in self.idle if other != there]
                    self.drop(table[place])
                    table[place] = there
        self.live[id][3] = max(had, full)

    def release(self, id, poisoned: bool) -> None:
        if id not in self.live:
            return
        _, tables, _, _ = self.live.pop(id)
        if poisoned:
            for page in (page for table in tables for page in table if page and self.holders[page] == 1):
                for content in [content for content, other in self.known.items() if other == page]:
                    self.forget(content)
        for page in [page for places in zip(*tables, strict=True) for page in places if page][::-1]:
            self.drop(page)


class Compared:
    """The real cache, whose every call is made of the naive one too."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self.naive = NaiveCache(cache.pool.count, cache.page_size, cache.windows)

    def __getattr__(self, name):
        return getattr(self.cache, name)

    def admit(self, id, tokens, salt=None):
        hit = self.cache.admit(id, tokens, salt)
        assert hit == self.naive.admit(id, tokens, salt)
        return hit

    def reserve(self, id, end):
        done = self.cache.reserve(id, end)
        assert done == self.naive.reserve(id, end)
        return done

    def add_pages(self, ids):
        (id,) = ids
        changes = self.cache.add_pages(ids)
        assert (changes is not None) == self.naive.reserve(id, self.naive.live[id][2] + self.cache.page_size)
        return changes

    def publish(self, id, tokens, end):
        self.naive.publish(id, tokens, end)
        return self.cache.publish(id, tokens, end)

    def release(self, id, poisoned=False):
        self.naive.release(id, poisoned)
        self.cache.release(id, poisoned)

    def check(self) -> None:
        """Check the idle pages and their order, the free pages, and the evicted ones."""
        self.cache.check()
        contents = {page: content for node in self.cache.tree() for content, page in self._contents(node, ())}
        known = {page: content for content, page in self.naive.known.items()}
        assert set(contents.values()) == set(known.values())
        assert [contents[page] for page in self.cache.pool.idle] == [known[page] for page in self.naive.idle]
        assert len(self.cache.pool.free) == self.naive.free
        assert self.cache.evictions == self.naive.evictions

    def _contents(self, node: TreeNode, before: tuple[int, ...]):
        tokens, size = before + node.tokens, self.cache.page_size
        for group, run in enumerate(node.pages):
            for place, page in enumerate(run, len(before) // size):
                if page:
                    yield self.naive.content(group, node.salt, tokens, place), page
        for child in node.children:
            yield from self._contents(child, tokens)
