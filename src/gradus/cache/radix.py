"""Which pages hold which tokens already: a radix tree, so that a prefix that many sequences share is computed once.

A path from the root spells the tokens of a sequence, a whole page at a time, for a key depends on every token before
it. The tree is compressed: a node is a run of pages without a fork, split when a fork comes (RadixAttention: Zheng et
al. 2024, section 3).

         root ── [You are a helpful … | pages 1 2 3] ─┬─ [What is the … | pages 4 5]
                                                      └─ [Write a poem … | page 6]

Two rules keep it cheap. A sequence that holds a page holds all pages before it, and pages are given back deepest first:
so the page that was idle longest always ends a path, and eviction needs no search. And a sequence remembers its place,
a Cursor: so the next page is entered without walking the path again. The tree never counts references; the pool does.

Layer groups with a sliding window keep pages in the same nodes, but lose them sooner: 0 stands for a page that is gone.

The plain form is phases/p05_prefix_cache/radix.py. This one adds cursors, layer groups with windows, pages that leave
from the middle of a path, and several evictions at a time.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gradus.cache.inspection import TreeNode
from gradus.cache.windows import first_page

Key = tuple[Hashable, tuple[int, ...]]  # the salt, and the tokens of one page
Duplicate = tuple[int, int, int]  # layer group, place in its block table, the page that the tree has for it


@dataclass(slots=True, eq=False)
class Node:
    """Pages [start, end) of every sequence that passes here.

    key: what the parent knows it by. tokens: page_size for each page. pages: a run per layer group, 0 for a page gone.
    shortened: pages were evicted from its end. Then it grows no more, so a cursor beyond its end is known to be lost.
    """

    parent: "Node | None"
    key: Key
    start: int
    end: int
    tokens: list[int]
    pages: list[list[int]]
    children: dict[Key, "Node"] = field(default_factory=dict)
    shortened: bool = False


@dataclass(slots=True)
class Cursor:
    """A sequence's place in the tree: after `depth` pages, the last of them in `node`. It sees only its own salt."""

    salt: Hashable
    node: Node
    depth: int = 0

    def find(self) -> bool:
        """Follow the splits since the cursor was last used: the part above a split is a new node, the parent.

        False if its place was evicted: then whatever comes after it could never be found.
        """
        while self.depth <= self.node.start and self.node.parent is not None:
            self.node = self.node.parent
        return self.depth <= self.node.end


class PrefixIndex:
    """Tokens to pages. `owners` says which node each page is in, and so which pages are indexed at all."""

    def __init__(self) -> None:
        self.owners: dict[int, Node] = {}
        self.attach(page_size=1, windows=(None,))

    def attach(self, page_size: int, windows: Sequence[int | None]) -> None:
        """Serve a cache with pages of `page_size` and one layer group a window. Raises ValueError if not empty."""
        if self.owners:
            raise ValueError("this prefix index has pages of another cache")
        self.page_size = page_size
        self.windows = tuple(windows)
        self.sliding = [(group, window) for group, window in enumerate(windows) if window is not None]
        self.all_sliding = len(self.sliding) == len(windows)
        self.root = Node(None, (None, ()), 0, 0, [], [[] for _ in windows])

    # -- finding -----------------------------------------------------------------------------------------------------

    def match(self, tokens: list[int], salt: Hashable = None) -> tuple[Cursor, list[list[int]]]:
        """The longest beginning of `tokens` that can be taken from the cache, in whole pages, at most all but a token.

        Returns the place where it ends, and a block table a layer group, 0 for pages that no later query sees. A layer
        group without a window needs all pages, the others those that the first token to be computed sees.
        """
        cursor, found = Cursor(salt, self.root), [list[int]() for _ in self.windows]
        longest = (len(tokens) - 1) // self.page_size  # there is always a token to compute: it gives the logits
        while steps := self._advance(cursor, tokens, longest):
            last = cursor.depth - cursor.node.start
            for table, run in zip(found, cursor.node.pages, strict=True):
                table += run[last - steps : last]
        if self.sliding:
            self._hide_unseen(cursor, found)
        return cursor, found

    def _hide_unseen(self, cursor: Cursor, found: list[list[int]]) -> None:
        """Go back to where no page is missing that a window sees, and leave out those that none sees."""
        hit = cursor.depth = self._usable(found)
        cursor.find()
        for table, window in zip(found, self.windows, strict=True):
            first = first_page(hit * self.page_size, window, self.page_size)
            table[:] = [0] * first + table[first:hit]

    def _advance(self, cursor: Cursor, tokens: list[int], end: int) -> int:
        """Move the cursor along one node while it agrees with `tokens`, up to page `end`. Returns the pages passed."""
        node, depth, size = cursor.node, cursor.depth, self.page_size
        if depth == end:
            return 0
        if depth == node.end:
            if not node.children:
                return 0
            child = node.children.get((cursor.salt, tuple(tokens[depth * size : (depth + 1) * size])))
            if child is None:
                return 0
            node = child
        most = min(node.end, end)
        known = node.tokens[(depth - node.start) * size : (most - node.start) * size]
        steps = agreeing_pages(known, tokens[depth * size : most * size], size)
        if steps:
            cursor.node, cursor.depth = node, depth + steps
        return steps

    def _usable(self, found: list[list[int]]) -> int:
        """How many of the pages found can be hit: fewer than all if a window's pages are gone."""
        hit, before = len(found[0]), -1
        while hit != before:
            before = hit
            for group, window in self.sliding:
                seen = found[group][first_page(hit * self.page_size, window, self.page_size) : hit]
                if 0 in seen:  # back to where the last one missing is not needed
                    hit -= 1 + seen[::-1].index(0)
        return hit

    # -- growing -----------------------------------------------------------------------------------------------------

    def insert(self, cursor: Cursor, tokens: list[int], tables: Sequence[list[int]], end: int) -> list[Duplicate]:
        """Enter a sequence's pages from its cursor up to page `end`, and move the cursor there.

        tables: its block tables, one per layer group; entries of 0 are not entered. Where the tree has a page for the
        same tokens already, that one stays, and is returned: the sequence must swap its own for it, so that it holds
        every page on its path.
        """
        duplicates: list[Duplicate] = []
        if not cursor.find():
            return duplicates
        while steps := self._advance(cursor, tokens, end):
            duplicates += self._merge(cursor, tables, steps)
        if cursor.depth < end:
            self._grow(cursor, tokens, tables, end)
        return duplicates

    def _merge(self, cursor: Cursor, tables: Sequence[list[int]], steps: int) -> Iterator[Duplicate]:
        """The cursor just passed `steps` pages that were there: fill in what is gone, and tell what is there twice."""
        node = cursor.node
        for depth in range(cursor.depth - steps, cursor.depth):
            for group, (table, run) in enumerate(zip(tables, node.pages, strict=True)):
                own, there = table[depth], run[depth - node.start]
                if own and not there:
                    run[depth - node.start] = own
                    self.owners[own] = node
                elif own and own != there:
                    yield group, depth, there

    def _grow(self, cursor: Cursor, tokens: list[int], tables: Sequence[list[int]], end: int) -> None:
        """What comes next is new: it lengthens the node if that is a path's end, and forks off otherwise."""
        node, depth, size = cursor.node, cursor.depth, self.page_size
        run, pages = tokens[depth * size : end * size], [table[depth:end] for table in tables]
        if depth < node.end:
            node = self._split(node, depth)
        if node is self.root or node.children or node.shortened:
            node = self._add(node, cursor.salt, run, pages)
        else:
            node.tokens += run
            for known, new in zip(node.pages, pages, strict=True):
                known += new
            node.end = end
        self._own(node, pages)
        cursor.node, cursor.depth = node, end
        if self.all_sliding:
            self._prune(node)

    def _split(self, node: Node, depth: int) -> Node:
        """Make two nodes of one, before page `depth`. Returns the upper, which is new: cursors `find` it."""
        assert node.parent is not None
        pages, tokens = depth - node.start, (depth - node.start) * self.page_size
        salt, _ = node.key
        upper = self._add(node.parent, salt, node.tokens[:tokens], [run[:pages] for run in node.pages])
        self._own(upper, upper.pages)
        node.parent, node.start, node.key = upper, depth, (salt, tuple(node.tokens[tokens : tokens + self.page_size]))
        node.tokens, node.pages = node.tokens[tokens:], [run[pages:] for run in node.pages]
        upper.children[node.key] = node
        return upper

    def _add(self, parent: Node, salt: Hashable, tokens: list[int], pages: list[list[int]]) -> Node:
        key = salt, tuple(tokens[: self.page_size])
        node = parent.children[key] = Node(parent, key, parent.end, parent.end + len(pages[0]), tokens, pages)
        return node

    def _own(self, node: Node, pages: list[list[int]]) -> None:
        owners = self.owners
        for run in pages:
            for page in run:
                owners[page] = node
        if self.sliding:
            owners.pop(0, None)  # 0 is no page

    # -- forgetting --------------------------------------------------------------------------------------------------

    def remove(self, page: int) -> list[int]:
        """Forget a page, and all that is of no use without it. Returns every page forgotten, this one included.

        Without a page of a full-attention group no hit gets past its place: the others there go too, and all below.
        A window group's page goes alone. Raises KeyError for a page that is not indexed.
        """
        node = self.owners[page]
        group, place = self._locate(node, page)
        if self.windows[group] is None:
            return self._cut(node, place)
        node.pages[group][place] = 0
        del self.owners[page]
        self._prune(node)
        return [page]

    def trim(self, pages: list[int]) -> list[int]:
        """Remove the first of some pages, and those after it as long as each ends the path that the last one ended.

        Pages are given back deepest first, so it is many at a time. It does what as many calls of `remove` would.
        """
        node = self.owners[pages[0]]
        if node.children or self.windows != (None,):
            return self.remove(pages[0])
        (run,) = node.pages
        gone = agreeing_pages(pages[: len(run)], run[: -len(pages) - 1 : -1], 1)
        return self._shorten(node, len(run) - gone)[::-1]

    def _locate(self, node: Node, page: int) -> tuple[int, int]:
        """The layer group of one of the node's pages, and its place in the run: nearly always the last."""
        for group, run in enumerate(node.pages):
            if run[-1] == page:
                return group, len(run) - 1
        return next((group, run.index(page)) for group, run in enumerate(node.pages) if page in run)

    def _cut(self, node: Node, place: int) -> list[int]:
        """Forget a node from one of its places on, and everything below it."""
        forgotten, below = [], list(node.children.values())
        while below:
            child = below.pop()
            below += child.children.values()
            forgotten += self._shorten(child, 0)
        node.children.clear()
        return forgotten + self._shorten(node, place)

    def _shorten(self, node: Node, length: int) -> list[int]:
        """Leave a node `length` pages; with none, it leaves the tree."""
        forgotten: list[int] = []
        for run in node.pages:
            forgotten += run[length:]
            del run[length:]
        if self.sliding:
            forgotten = [page for page in forgotten if page]
        for page in forgotten:
            del self.owners[page]
        del node.tokens[length * self.page_size :]
        node.end, node.shortened = node.start + length, True
        if length == 0 and node.parent is not None:
            node.parent.children.pop(node.key, None)
        return forgotten

    def _prune(self, node: Node) -> None:
        """Where every group has a window, a path may end in places without any page: nothing leads there any more."""
        while node.parent is not None and not node.children and not any(run[-1] for run in node.pages):
            self._shorten(node, node.end - node.start - 1)
            if node.end == node.start:
                node = node.parent

    # -- the invariants ----------------------------------------------------------------------------------------------

    def view(self) -> tuple[TreeNode, ...]:
        """The nodes below the root, nested. A snapshot: it stays as it is."""
        return tuple(map(_view, self.root.children.values()))

    def path(self, cursor: Cursor, group: int) -> list[int]:
        """A layer group's pages from the root to the cursor."""
        assert cursor.find()
        node: Node | None = cursor.node
        pages: list[int] = []
        while node is not None:
            pages[:0] = node.pages[group]
            node = node.parent
        return pages[: cursor.depth]

    def successors(self) -> Iterator[tuple[int, int]]:
        """Every page of the groups without a window, with each page that comes right after it on a path."""
        for node in self._nodes():
            for group, window in enumerate(self.windows):
                if window is None:
                    run = node.pages[group]
                    yield from pairwise(run)
                    yield from ((run[-1], child.pages[group][0]) for child in node.children.values())

    def check(self) -> None:
        """The nodes fit together, spell what their keys say, and own the pages that `owners` says."""
        owners = {}
        for node in self._nodes():
            (salt, first), parent = node.key, node.parent
            assert parent is not None and parent.children[node.key] is node and node.start == parent.end
            assert tuple(node.tokens[: self.page_size]) == first and len(first) == self.page_size
            assert parent is self.root or parent.key[0] == salt, "salts never mix"
            assert all(len(run) == node.end - node.start for run in node.pages)
            assert all(len(run) * self.page_size == len(node.tokens) for run in node.pages)
            for run, window in zip(node.pages, self.windows, strict=True):
                assert window is not None or 0 not in run, "only a window's pages go alone"
                for page in filter(None, run):
                    assert page not in owners, f"page {page} is indexed twice"
                    owners[page] = node
            assert node.children or any(run[-1] for run in node.pages), "a path ends with a page"
        assert owners == self.owners

    def _nodes(self) -> Iterator[Node]:
        left = list(self.root.children.values())
        while left:
            node = left.pop()
            left += node.children.values()
            yield node


def agreeing_pages(left: list[int], right: list[int], page_size: int) -> int:
    """How many whole pages two lists of tokens have in common at their beginnings.

    Comparing slices is a loop in C, and most often they are equal to the end of one. If not, it is found by halves.
    """
    agree, most = 0, min(len(left), len(right)) // page_size
    if left == right:
        return most
    while agree < most:
        middle = (agree + most + 1) // 2
        pages = slice(agree * page_size, middle * page_size)
        if left[pages] == right[pages]:
            agree = middle
        else:
            most = middle - 1
    return agree


def _view(node: Node) -> TreeNode:
    pages = tuple(tuple(run) for run in node.pages)
    salt, _ = node.key
    return TreeNode(tuple(node.tokens), pages, tuple(map(_view, node.children.values())), salt)
