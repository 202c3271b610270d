"""A cache's state for a probe: gradus.course.probe documents the methods that return it. No torch here."""

from collections.abc import Hashable
from typing import NamedTuple

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
