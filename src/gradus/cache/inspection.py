"""A cache's state for a probe: gradus.course.probe documents the methods that return it. No torch here.

A running server shows the same live, so its pages and its largest nodes are also read in a few vector operations,
whatever their number.
"""

from array import array
from collections.abc import Hashable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tables = tuple[tuple[int, ...], ...]
"""A sequence's block tables, one per layer group; () for a sequence without pages. Entry i is the page of positions
[i * page_size, (i + 1) * page_size); 0 marks a page that was given back."""


class PageCounts(NamedTuple):
    """The number of pages in each state: total = held + idle + free.

    held: at least one sequence refers to the page. idle: only the prefix index keeps it, so it can be evicted.
    """

    total: int
    held: int
    idle: int
    free: int


class TreeNode(NamedTuple):
    """One node of a prefix tree.

    tokens: page_size per page. pages: the node's own pages, one tuple per layer group; 0 marks an evicted page.
    salt: only sequences with this salt find the node.
    """

    tokens: tuple[int, ...]
    pages: Tables
    children: "tuple[TreeNode, ...]" = ()
    salt: Hashable = None


class PageState(IntEnum):
    """The state of a page: FREE; CACHED: idle, only the prefix index keeps it; HELD by one sequence; SHARED by
    several."""

    FREE = 0
    CACHED = 1
    HELD = 2
    SHARED = 3


States = NDArray[np.uint8]
"""The `PageState` of pages 1, 2, 3, …"""


def page_states(references: "array[int]", idle: NDArray[np.int32]) -> States:
    """Read the state of every page. references: how many sequences refer to it, by page; idle: the idle pages."""
    counts = np.frombuffer(references, np.int32)
    states = 2 * (counts > 0).view(np.uint8) + (counts > 1).view(np.uint8)
    states[idle] = PageState.CACHED
    return states[1:]


def page_changes(before: States, after: States) -> NDArray[np.int32]:
    """Return the runs of neighboring pages that have changed to the same state: [runs, 3], the index of the first one,
    their number, and the state."""
    changed = np.flatnonzero(before != after)
    if not len(changed):
        return np.empty((0, 3), np.int32)
    states = after[changed]
    ends = (np.diff(changed) != 1) | (np.diff(states) != 0)
    firsts = np.concatenate(([0], np.flatnonzero(ends) + 1))
    lengths = np.diff(np.concatenate((firsts, [len(changed)])))
    return np.stack((changed[firsts], lengths, states[firsts]), axis=1).astype(np.int32)


def apply_changes(states: States, runs: NDArray[np.int32]) -> None:
    """Bring states up to date. Raises ValueError for a run beyond the last page, or a state that does not exist."""
    for first, length, state in runs.tolist():
        if first < 0 or length < 1 or first + length > len(states):
            raise ValueError(f"pages {first} to {first + length} of {len(states)}")
        states[first : first + length] = PageState(state)


class NodeSize(NamedTuple):
    """One node of a prefix tree, in numbers: never its tokens, never its salt.

    parent: the index of its parent in the same list, or of the nearest ancestor there; -1: none of them is.
    start: the pages before it on its path. places: the length of its run in pages. pages: in all layer groups, those
    that are left. held: how many of them sequences refer to. holders: sequences that refer to its first page.
    children: nodes right below it.
    """

    parent: int
    start: int
    places: int
    pages: int
    held: int
    holders: int
    children: int


def sizes_of(tree: tuple[TreeNode, ...], references: "array[int]", most: int) -> list[NodeSize]:
    """List the sizes of up to `most` nodes, parents before their children, the largest of each level first."""
    found: list[NodeSize] = []
    level = [(-1, 0, node) for node in tree]
    while level and len(found) < most:
        below = []
        for parent, start, node in sorted(level, key=lambda each: -len(each[2].pages[0]))[: most - len(found)]:
            counts = [references[page] for run in node.pages for page in run if page]
            held, places = sum(count > 0 for count in counts), len(node.pages[0])
            below += [(len(found), start + places, child) for child in node.children]
            found.append(NodeSize(parent, start, places, len(counts), held, max(counts, default=0), len(node.children)))
        level = below
    return found
