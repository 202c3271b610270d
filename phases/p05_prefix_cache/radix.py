"""A radix tree over pages: which page holds the keys and values of a prefix (RadixAttention, Zheng et al. 2024).

A token's keys and values depend on every token before it. So sequences can share a page if they agree on its tokens
and on all tokens before it: if they have a prefix in common. The tree spells prefixes. Each step down is one page,
known by its tokens. Pages that only follow each other are kept as one node, which is split where two sequences part.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from gradus.cache.inspection import TreeNode

Key = tuple[Hashable, tuple[int, ...]]  # the salt, and the tokens of one page


def page_keys(tokens: list[int], page_size: int, salt: Hashable = None) -> list[Key]:
    """One key for each page that `tokens` fill. Keys with different salts never agree, so nothing is shared."""
    firsts = range(0, len(tokens) - page_size + 1, page_size)
    return [(salt, tuple(tokens[first : first + page_size])) for first in firsts]


@dataclass(slots=True, eq=False)
class Node:
    """Pages that follow each other on a path, and the key of each. children: by the first key of each."""

    parent: "Node | None"
    keys: list[Key]
    pages: list[int]
    children: "dict[Key, Node]" = field(default_factory=dict)


class PrefixIndex:
    """Keys to pages. owners: the node of each page, and so which pages are indexed."""

    def __init__(self) -> None:
        self.root = Node(None, [], [])
        self.owners: dict[int, Node] = {}

    # -- finding -----------------------------------------------------------------------------------------------------

    def match(self, keys: list[Key]) -> list[int]:
        """The pages of the longest known prefix of `keys`, in order."""
        return [page for node, count in self.path(keys) for page in node.pages[:count]]

    def path(self, keys: list[Key]) -> Iterator[tuple[Node, int]]:
        """The nodes below the root that agree with `keys`, and how many pages of each do: all but in the last."""
        node, depth = self.root, 0
        while depth < len(keys) and keys[depth] in node.children:
            node = node.children[keys[depth]]
            count = agreeing(node.keys, keys[depth:])
            yield node, count
            if count < len(node.keys):
                return
            depth += count

    # -- growing -----------------------------------------------------------------------------------------------------

    def insert(self, keys: list[Key], pages: list[int]) -> list[int]:
        """Enter a path. Returns its pages in the tree: where a key was known, the page that was there first."""
        known: list[int] = []
        node, count = self.root, 0
        for node, count in self.path(keys):
            known += node.pages[:count]
        fresh = pages[len(known) :]
        if fresh:
            if count < len(node.keys):
                self.split(node, count)
            self.grow(node, keys[len(known) :], fresh)
        return known + fresh

    def split(self, node: Node, count: int) -> None:
        """Leave a node its first `count` pages. The others, and the node's children, move to a new child."""
        lower = Node(node, node.keys[count:], node.pages[count:], node.children)
        del node.keys[count:], node.pages[count:]
        node.children = {lower.keys[0]: lower}
        for child in lower.children.values():
            child.parent = lower
        self.owners |= dict.fromkeys(lower.pages, lower)

    def grow(self, node: Node, keys: list[Key], pages: list[int]) -> None:
        """Continue a path after a node's last page: a leaf grows longer, any other node gets a child."""
        if node is self.root or node.children:
            child = Node(node, [], [])
            node.children[keys[0]] = child
            node = child
        node.keys += keys
        node.pages += pages
        self.owners |= dict.fromkeys(pages, node)

    # -- forgetting --------------------------------------------------------------------------------------------------

    def remove(self, page: int) -> None:
        """Forget a page at a path's end: any other page is still needed to reach the pages after it."""
        node = self.owners.pop(page)
        assert node.pages[-1] == page and not node.children, "only the end of a path can be removed"
        node.pages.pop()
        key = node.keys.pop()
        if not node.pages and node.parent is not None:
            del node.parent.children[key]

    # -- the books ---------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node below the root, parents before their children."""
        left = [*self.root.children.values()]
        for node in left:
            yield node
            left += node.children.values()

    def check(self) -> None:
        """Assert that nodes are connected, are not empty, and own the pages that `owners` records."""
        owners: dict[int, Node] = {}
        for node in self.nodes():
            parent = node.parent
            assert parent and parent.children[node.keys[0]] is node, "a node's parent does not have it as a child"
            assert len(node.keys) == len(node.pages) > 0, "a node needs as many keys as pages, and at least one"
            assert not owners.keys() & set(node.pages), "a page is indexed twice"
            owners |= dict.fromkeys(node.pages, node)
        assert owners == self.owners, "`owners` names other nodes than those that have the pages"


def agreeing(left: list[Key], right: list[Key]) -> int:
    """Count the keys that two lists share at their beginnings."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def view(node: Node) -> TreeNode:
    """For probes: a node and all below it."""
    salt = node.keys[0][0]
    tokens = tuple(token for _, page_tokens in node.keys for token in page_tokens)
    return TreeNode(tokens, (tuple(node.pages),), tuple(map(view, node.children.values())), salt)
