"""The prefix index: a radix tree from tokens to pages, so that a prefix that many sequences share is computed once.

A path from the root spells the tokens of a sequence, a whole page at a time, because a key depends on every token
before it. The tree is compressed: a node is a run of pages without a fork, and a new fork splits it (RadixAttention:
Zheng et al. 2024, section 3).

         root ── [You are a helpful … | pages 1 2 3] ─┬─ [What is the … | pages 4 5]
                                                      └─ [Write a poem … | page 6]

Two rules keep it cheap. A sequence that holds a page holds all pages before it, and pages are given back deepest first:
so the page that was idle longest always ends a path, and eviction needs no search. And a sequence remembers its place,
a Cursor, so its next page is entered without walking the path again. The tree never counts references; the pool does.

Pages and tokens are numbers in arrays, and the tree has one object per node. So the garbage collector
has little to follow and an eviction has little to free, whatever the number of pages.

Layer groups with a sliding window keep pages in the same nodes, but lose them sooner: 0 marks an evicted page.

The plain form is phases/p05_prefix_cache/radix.py. This one adds cursors, layer groups with windows, pages that leave
from the middle of a path, and several evictions at a time.
"""

import struct
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from gradus.cache.inspection import NodeSize, TreeNode
from gradus.cache.windows import first_page

TOKEN_BYTES = 4
MOST_HOPS = 64  # from a node up to its nearest ancestor in a list
Key = tuple[Hashable, bytes]  # the salt, and the tokens of one page
Duplicate = tuple[int, int, int]  # layer group, place in its block table, the tree's page for that place


@dataclass(slots=True, eq=False)
class Node:
    """Pages [start, end) of every sequence whose path passes here.

    number: its number in `owners`. key: its key in the parent's children. tokens: TOKEN_BYTES each, page_size per
    page. pages: one run per layer group, 0 for an evicted page.
    shortened: pages were evicted from its end. It then no longer grows, so a cursor past its end is known to be lost.
    """

    number: int
    parent: "Node | None"
    key: Key
    start: int
    end: int
    tokens: bytearray
    pages: "tuple[array[int], ...]"
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

        Returns False if the cursor's place was evicted: pages entered after it could never be found.
        """
        while self.depth <= self.node.start and self.node.parent is not None:
            self.node = self.node.parent
        return self.depth <= self.node.end


class PrefixIndex:
    """Maps tokens to pages. As a container, it contains the pages that are indexed.

    nodes: by number; the root is number 0, which owns no page. owners: by page, the number of its node. depths: by
    indexed page, the number of pages before it on its path.
    """

    def __init__(self) -> None:
        self.attach(page_size=1, windows=(None,), pages=0)

    def attach(self, page_size: int, windows: Sequence[int | None], pages: int) -> None:
        """Serve a cache: `pages` pages of `page_size` positions, and one layer group per window.

        Raises ValueError if this index has pages of another cache.
        """
        if len(getattr(self, "nodes", ())) > 1:
            raise ValueError("this prefix index has pages of another cache")
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.windows = tuple(windows)
        self.sliding = [(group, window) for group, window in enumerate(windows) if window is not None]
        self.all_sliding = len(self.sliding) == len(windows)
        self.owners, self.depths = (array("i", [0]) * (pages + 1) for _ in range(2))
        self.root = Node(0, None, (None, b""), 0, 0, bytearray(), tuple(array("i") for _ in windows))
        self.nodes: list[Node | None] = [self.root]
        self._unused: list[int] = []  # numbers of nodes that have left the tree

    def __contains__(self, page: Any) -> bool:
        return self.owners[page] > 0

    # -- finding -----------------------------------------------------------------------------------------------------

    def match(self, tokens: list[int], salt: Hashable = None) -> tuple[Cursor, list[list[int]]]:
        """Find the longest prefix of `tokens` in the cache, in whole pages, that leaves at least one token to compute.

        Returns the place where it ends, and one block table per layer group, with 0 for pages that no later query sees.
        A layer group without a window needs all pages, the others those that the first token to be computed sees.
        """
        cursor, found = Cursor(salt, self.root), [list[int]() for _ in self.windows]
        longest = (len(tokens) - 1) // self.page_size  # at least one token must be computed, for the logits
        text = self._pack(tokens, 0, longest)
        while steps := self._advance(cursor, text, 0, longest):
            last = cursor.depth - cursor.node.start
            for table, run in zip(found, cursor.node.pages, strict=True):
                table += run[last - steps : last]
        if self.sliding:
            self._hide_unseen(cursor, found)
        return cursor, found

    def _hide_unseen(self, cursor: Cursor, found: list[list[int]]) -> None:
        """Shorten the hit until no page is missing that a window sees, and leave out pages that no window sees."""
        hit = cursor.depth = self.usable(found)
        cursor.find()
        for table, window in zip(found, self.windows, strict=True):
            first = first_page(hit * self.page_size, window, self.page_size)
            table[:] = [0] * first + table[first:hit]

    def _pack(self, tokens: list[int], first: int, end: int) -> bytes:
        """Pack the tokens of pages [first, end) into bytes, as nodes store them."""
        text = tokens[first * self.page_size : end * self.page_size]
        return struct.pack(f"{len(text)}i", *text)

    def _advance(self, cursor: Cursor, text: bytes, first: int, end: int) -> int:
        """Move the cursor along one node while it agrees with `text`, up to page `end`. Returns the pages passed.

        text: the packed tokens of pages [first, end).
        """
        node, depth, size = cursor.node, cursor.depth, self.page_bytes
        if depth == end:
            return 0
        at = (depth - first) * size
        if depth == node.end:
            child = node.children.get((cursor.salt, text[at : at + size]))
            if child is None:
                return 0
            node = child
        most = min(node.end, end)
        known = node.tokens[(depth - node.start) * size : (most - node.start) * size]
        steps = agreeing_pages(known, text[at : (most - first) * size], size)
        if steps:
            cursor.node, cursor.depth = node, depth + steps
        return steps

    def usable(self, found: list[list[int]]) -> int:
        """The number of the found pages that can be hit: fewer than all if a window's pages are missing (0)."""
        hit, before = len(found[0]), -1
        while hit != before:
            before = hit
            for group, window in self.sliding:
                seen = found[group][first_page(hit * self.page_size, window, self.page_size) : hit]
                if 0 in seen:  # shorten the hit until the last missing page is not needed
                    hit -= 1 + seen[::-1].index(0)
        return hit

    # -- growing -----------------------------------------------------------------------------------------------------

    def insert(self, cursor: Cursor, tokens: list[int], tables: Sequence[list[int]], end: int) -> list[Duplicate]:
        """Enter a sequence's pages from its cursor up to page `end`, and move the cursor there.

        tables: its block tables, one per layer group; entries of 0 are not entered. If the tree already has a page for
        the same tokens, it keeps that page and returns it: the sequence must swap its own for it, so that it holds
        every page on its path.
        """
        duplicates: list[Duplicate] = []
        if not cursor.find():
            return duplicates
        first = cursor.depth
        text = self._pack(tokens, first, end)
        while steps := self._advance(cursor, text, first, end):
            duplicates += self._merge(cursor, tables, steps)
        if cursor.depth < end:
            self._grow(cursor, text[(cursor.depth - first) * self.page_bytes :], tables, end)
        return duplicates

    def _merge(self, cursor: Cursor, tables: Sequence[list[int]], steps: int) -> Iterator[Duplicate]:
        """Merge the last `steps` pages that the cursor passed: refill evicted entries, and yield duplicates."""
        node = cursor.node
        for depth in range(cursor.depth - steps, cursor.depth):
            for group, (table, run) in enumerate(zip(tables, node.pages, strict=True)):
                own, there = table[depth], run[depth - node.start]
                if own and not there:
                    run[depth - node.start] = own
                    self.owners[own], self.depths[own] = node.number, depth
                elif own and own != there:
                    yield group, depth, there

    def _grow(self, cursor: Cursor, text: bytes, tables: Sequence[list[int]], end: int) -> None:
        """Enter the new pages from the cursor up to `end`, and their tokens, `text`.

        They lengthen the node if it ends a path, and fork off otherwise.
        """
        node, depth = cursor.node, cursor.depth
        pages = tuple(array("i", table[depth:end]) for table in tables)
        if depth < node.end:
            node = self._split(node, depth)
        if node is self.root or node.children or node.shortened:
            node = self._add(node, cursor.salt, bytearray(text), pages)
        else:
            node.tokens += text
            for known, new in zip(node.pages, pages, strict=True):
                known += new
            node.end = end
        self._own(node, pages, depth)
        cursor.node, cursor.depth = node, end
        if self.all_sliding:
            self._prune(node)

    def _split(self, node: Node, depth: int) -> Node:
        """Split a node before page `depth`. Returns the upper part, a new node, which cursors `find`."""
        assert node.parent is not None
        pages, tokens = depth - node.start, (depth - node.start) * self.page_bytes
        salt, _ = node.key
        upper = self._add(node.parent, salt, node.tokens[:tokens], tuple(run[:pages] for run in node.pages))
        self._own(upper, upper.pages, upper.start)
        node.tokens, node.pages = node.tokens[tokens:], tuple(run[pages:] for run in node.pages)
        node.parent, node.start, node.key = upper, depth, (salt, bytes(node.tokens[: self.page_bytes]))
        upper.children[node.key] = node
        return upper

    def _add(self, parent: Node, salt: Hashable, tokens: bytearray, pages: "tuple[array[int], ...]") -> Node:
        key = salt, bytes(tokens[: self.page_bytes])
        if not self._unused:
            self._unused.append(len(self.nodes))
            self.nodes.append(None)
        number = self._unused.pop()
        node = Node(number, parent, key, parent.end, parent.end + len(pages[0]), tokens, pages)
        parent.children[key] = self.nodes[number] = node
        return node

    def _own(self, node: Node, pages: "tuple[array[int], ...]", start: int) -> None:
        """Record that the node has these pages, one run per layer group, from page `start` of the path on."""
        owners, depths, number = self.owners, self.depths, node.number
        for run in pages:
            for depth, page in enumerate(run, start):
                owners[page], depths[page] = number, depth
        owners[0] = 0  # 0 is not a page, but marks evicted ones

    # -- forgetting --------------------------------------------------------------------------------------------------

    def remove(self, page: int) -> list[int]:
        """Forget a page, and all pages that are useless without it. Returns every page forgotten, including this one.

        Without a page of a full-attention group no hit gets past its place, so the other groups' pages there go too,
        and all pages below. A window group's page goes alone. Raises KeyError for a page that is not indexed.
        """
        node = self._node_of(page)
        place = self.depths[page] - node.start
        group = 0
        while node.pages[group][place] != page:
            group += 1
        if self.windows[group] is None:
            return self._cut(node, place)
        node.pages[group][place] = self.owners[page] = 0
        if self.all_sliding:
            self._prune(node)
        return [page]

    def trim(self, pages: list[int]) -> list[int]:
        """Remove pages in order, each with all pages that are useless without it, until len(pages) are forgotten.

        Returns every page forgotten. Sequences give pages back deepest first, so most often the next pages are the end
        of a path and are removed together. The result is the same as with separate calls of `remove`.
        """
        forgotten: list[int] = []
        done = 0
        while done < len(pages) and len(forgotten) < len(pages):
            page = pages[done]
            if not self.owners[page]:  # it was forgotten together with an earlier page
                done += 1
                continue
            node = self._node_of(page)
            places, found = (0, 0) if node.children else self._ending(node, pages, done)
            if places:
                gone = pages[done : done + found]
                self._shorten(node, node.end - node.start - places, gone)
                if self.all_sliding:
                    self._prune(node)
                done += found
            else:
                gone = self.remove(page)
                done += 1
            forgotten += gone
        return forgotten

    def _node_of(self, page: int) -> Node:
        node = self.nodes[self.owners[page]]
        if node is None or node is self.root:
            raise KeyError(page)
        return node

    def _ending(self, node: Node, pages: list[int], done: int) -> tuple[int, int]:
        """Count the places at a node's end whose pages come next in `pages`, deepest first, and count those pages."""
        runs = node.pages
        groups, left = len(runs), len(pages) - done
        if pages[done] != runs[-1][-1]:
            return 0, 0
        most = min(node.end - node.start, -(-left // groups))
        if groups == 1:
            ending = runs[0][: -most - 1 : -1].tolist()
        else:
            places = zip(*[run[: -most - 1 : -1] for run in reversed(runs)], strict=True)
            ending = [page for place in places for page in place if page]
        found = pages[done : done + len(ending)]
        if ending == found:
            return most, len(ending)
        whole = agreeing_pages(ending, found, 1) // groups  # fewer if a page was evicted
        return whole, sum(run[place] > 0 for run in runs for place in range(-whole, 0))

    def _cut(self, node: Node, place: int) -> list[int]:
        """Forget a node's pages from `place` on, and everything below it."""
        forgotten, below = [], list(node.children.values())
        while below:
            child = below.pop()
            below += child.children.values()
            gone = self._pages_from(child, 0)
            self._shorten(child, 0, gone)
            forgotten += gone
        node.children.clear()
        last = self._pages_from(node, place)
        self._shorten(node, place, last)
        return forgotten + last

    def _pages_from(self, node: Node, place: int) -> list[int]:
        return [page for run in node.pages for page in run[place:] if page]

    def _shorten(self, node: Node, length: int, gone: list[int]) -> None:
        """Cut a node to `length` places, without the pages `gone` after them; with 0 places it leaves the tree."""
        owners = self.owners
        for page in gone:
            owners[page] = 0
        for run in node.pages:
            del run[length:]
        del node.tokens[length * self.page_bytes :]
        node.end, node.shortened = node.start + length, True
        if length == 0 and node.parent is not None:
            node.parent.children.pop(node.key, None)
            self.nodes[node.number] = None
            self._unused.append(node.number)

    def _prune(self, node: Node) -> None:
        """Remove places without any page from a path's end. They occur if every group has a window, and cannot be
        hit."""
        while node.parent is not None and not node.children:
            if node.end > node.start:
                if any(run[-1] for run in node.pages):
                    return
                self._shorten(node, node.end - node.start - 1, [])
            if node.end == node.start:
                node = node.parent

    # -- the invariants ----------------------------------------------------------------------------------------------

    def view(self) -> tuple[TreeNode, ...]:
        """The nodes below the root, nested: a snapshot, which never changes."""
        return tuple(map(self._view, self.root.children.values()))

    def _view(self, node: Node) -> TreeNode:
        tokens = struct.unpack(f"{len(node.tokens) // TOKEN_BYTES}i", node.tokens)
        salt, _ = node.key
        return TreeNode(tokens, tuple(map(tuple, node.pages)), tuple(map(self._view, node.children.values())), salt)

    def largest(self, most: int, references: "array[int]") -> list[NodeSize]:
        """List the `most` nodes with the most pages, those nearest to the root first. references: the pool's, by page.

        Pages are counted by node in vector operations; only the nodes in the list are looked at one by one.
        """
        owners, counts = np.frombuffer(self.owners, np.int32), np.frombuffer(references, np.int32)
        pages = np.bincount(owners, minlength=len(self.nodes))
        held = np.bincount(owners[counts > 0], minlength=len(self.nodes))
        pages[0] = 0  # the root owns no page; pages outside the tree have its number
        largest = np.argpartition(pages, -most)[-most:] if len(pages) > most else np.arange(len(pages))
        numbers = largest[pages[largest] > 0].tolist()
        found = sorted(filter(None, map(self.nodes.__getitem__, numbers)), key=lambda node: node.start)
        places = {node.number: place for place, node in enumerate(found)}
        return [
            NodeSize(
                _nearest(node, places),
                node.start,
                node.end - node.start,
                int(pages[node.number]),
                int(held[node.number]),
                max(references[run[0]] for run in node.pages),
                len(node.children),
            )
            for node in found
        ]

    def path(self, cursor: Cursor, group: int) -> list[int]:
        """List a layer group's pages from the root to the cursor."""
        assert cursor.find()
        node: Node | None = cursor.node
        pages: list[int] = []
        while node is not None:
            pages[:0] = node.pages[group]
            node = node.parent
        return pages[: cursor.depth]

    def successors(self) -> Iterator[tuple[int, int]]:
        """List every page of the groups without a window, with each page right after it on a path."""
        for node in self._nodes():
            for group, window in enumerate(self.windows):
                if window is None:
                    run = node.pages[group]
                    yield from pairwise(run)
                    yield from ((run[-1], child.pages[group][0]) for child in node.children.values())

    def check(self) -> None:
        """Assert that the nodes fit together, agree with their keys, and own the pages that `owners` records."""
        owners, numbers = [0] * len(self.owners), {0}
        for node in self._nodes():
            assert self.nodes[node.number] is node, "a node has the number of another"
            numbers.add(node.number)
            (salt, first), parent = node.key, node.parent
            assert parent is not None and parent.children[node.key] is node and node.start == parent.end
            assert node.tokens[: self.page_bytes] == first and len(first) == self.page_bytes
            assert parent is self.root or parent.key[0] == salt, "salts never mix"
            assert all(len(run) == node.end - node.start for run in node.pages)
            assert all(len(run) * self.page_bytes == len(node.tokens) for run in node.pages)
            for run, window in zip(node.pages, self.windows, strict=True):
                assert window is not None or 0 not in run, "only a window's pages go alone"
                for depth, page in enumerate(run, node.start):
                    assert not owners[page], f"page {page} is indexed twice"
                    if page:
                        assert self.depths[page] == depth, f"page {page} is at another place"
                        owners[page] = node.number
            assert node.children or any(run[-1] for run in node.pages), "a path ends with a page"
        assert owners == self.owners.tolist()
        assert numbers.isdisjoint(self._unused) and len(numbers) + len(self._unused) == len(self.nodes)

    def _nodes(self) -> Iterator[Node]:
        left = list(self.root.children.values())
        while left:
            node = left.pop()
            left += node.children.values()
            yield node


def _nearest(node: Node, places: dict[int, int]) -> int:
    """Return the place of a node's nearest ancestor among `places`; -1 if there is none within MOST_HOPS."""
    above = node.parent
    for _ in range(MOST_HOPS):
        if above is None:
            break
        if above.number in places:
            return places[above.number]
        above = above.parent
    return -1


def agreeing_pages(left: Sequence[int], right: Sequence[int], page_size: int) -> int:
    """Count the whole pages, `page_size` entries each, that two texts share at their beginnings.

    Comparing slices is a loop in C, and most often they are equal to the end of one. If not, bisection finds the place.
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
