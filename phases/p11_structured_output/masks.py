"""From bytes to tokens: in each state of the automaton, the tokens whose bytes it can follow to their end.

The vocabulary is a tree of bytes, in which tokens that begin alike share a path. The walk goes down the tree and
through the automaton at once, and leaves a branch at the first byte that the automaton does not take. So it never looks
at most of the vocabulary, except in states that take nearly anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phases.p11_structured_output.dfa import Dfa

Mask = NDArray[np.bool_]
"""Whether each token is legal, [V]."""


@dataclass(slots=True)
class TreeNode:
    """tokens: those whose bytes end here. children: by the next byte."""

    tokens: list[int] = field(default_factory=list)
    children: dict[int, "TreeNode"] = field(default_factory=dict)


def tree_of(vocabulary: Sequence[bytes]) -> TreeNode:
    """Put each token's bytes into a tree. Tokens without bytes (control tokens, unused ids) are no text: left out."""
    root = TreeNode()
    for token, text in enumerate(vocabulary):
        if text:
            node = root
            for byte in text:
                node = node.children.setdefault(byte, TreeNode())
            node.tokens.append(token)
    return root


def legal(root: TreeNode, dfa: Dfa, state: int) -> list[int]:
    """The tokens that may come next in this state."""
    tokens: list[int] = []
    places = [(root, state)]
    while places:
        node, at = places.pop()
        tokens += node.tokens
        for byte in node.children.keys() & dfa.steps[at].keys():
            places.append((node.children[byte], dfa.steps[at][byte]))
    return tokens


class TokenMasks:
    """The masks of an automaton's states. Each is found when it is first asked for, and kept: a bit per token."""

    def __init__(self, dfa: Dfa, vocabulary: Sequence[bytes], root: TreeNode) -> None:
        self.dfa, self.vocabulary, self.root = dfa, vocabulary, root
        self.packed: dict[int, NDArray[np.uint8]] = {}

    def mask(self, state: int) -> Mask:
        """A new array, which the caller may change."""
        if state not in self.packed:
            mask = np.zeros(len(self.vocabulary), np.bool_)
            mask[legal(self.root, self.dfa, state)] = True
            self.packed[state] = np.packbits(mask)
        return np.unpackbits(self.packed[state], count=len(self.vocabulary)).view(np.bool_)
