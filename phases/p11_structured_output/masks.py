"""Turn bytes into tokens: in each state of the automaton, the tokens whose bytes it can follow to their end.

The vocabulary is a tree of bytes, in which tokens that begin alike share a path. The walk goes down the tree and
through the automaton at once, and skips a branch at the first byte that the automaton does not take. So it never looks
at most of the vocabulary, except in states that take nearly anything.
"""

from collections.abc import Sequence as Ordered
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from phases.p11_structured_output.dfa import Dfa


class TreeNode(NamedTuple):
    """One byte of some tokens. depth: how many bytes come before it. tokens: those that end with it.

    after: the place of the next node that is not below this one.
    """

    byte: int
    depth: int
    tokens: list[int]
    after: int


def tree_of(vocabulary: Ordered[bytes]) -> list[TreeNode]:
    """The tree of all tokens as a list: each node is followed by what is below it.

    Tokens without bytes (control tokens, unused ids) are no text: they are left out.
    """
    spelled = sorted((text, token) for token, text in enumerate(vocabulary) if text)
    found: list[tuple[int, int, list[int]]] = []
    after: dict[int, int] = {}
    path: list[int] = []  # the nodes of the last token
    for before, (text, token) in zip([b"", *(text for text, _ in spelled)], spelled, strict=False):
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))))
        after |= dict.fromkeys(path[shared:], len(found))
        del path[shared:]
        for depth in range(shared, len(text)):
            path.append(len(found))
            found.append((text[depth], depth, []))
        found[path[-1]][2].append(token)
    return [TreeNode(*node, after.get(place, len(found))) for place, node in enumerate(found)]


def legal(tree: Ordered[TreeNode], dfa: Dfa, state: int) -> list[int]:
    """The tokens that may come next in this state."""
    found: list[int] = []
    states = {0: state}  # before the byte of each depth
    place = 0
    while place < len(tree):
        byte, depth, tokens, after = tree[place]
        behind = dfa.steps[states[depth]].get(byte)
        if behind is None:
            place = after
        else:
            states[depth + 1] = behind
            found += tokens
            place += 1
    return found


class TokenMasks:
    """The masks of an automaton's states. Each is found when it is first asked for, and kept: a byte per token."""

    def __init__(self, dfa: Dfa, vocabulary: Ordered[bytes], tree: Ordered[TreeNode]) -> None:
        self.dfa, self.vocabulary, self.tree = dfa, vocabulary, tree
        self.kept: dict[int, bytes] = {}

    def mask(self, state: int) -> Tensor:
        """Whether each token is legal in this state: bool [V], on the host, a copy that the caller may change."""
        if state not in self.kept:
            mask = bytearray(len(self.vocabulary))
            for token in legal(self.tree, self.dfa, state):
                mask[token] = True
            self.kept[state] = bytes(mask)
        return torch.frombuffer(bytearray(self.kept[state]), dtype=torch.bool)
