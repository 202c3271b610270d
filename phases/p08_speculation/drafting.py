"""Guesses. A drafter proposes how sequences go on; the simplest one looks it up in their own text.

The output never depends on a drafter: the model decides what is kept. Only the speed does.
"""

from collections.abc import Sequence as Ordered
from typing import Protocol

from gradus.engine.sequence import Sequence

LONGEST = 3  # tokens of an ending that is looked up
SHORTEST = 2  # a single token's match says too little


class Drafter(Protocol):
    """Proposes tokens that may come next."""

    def propose(self, asked: Ordered[tuple[Sequence, int]]) -> list[list[int]]:
        """Drafts for each of the sequences asked about, in their order.

        asked: a sequence, and how many tokens it has room for, 1 or more. Fewer drafts, or none, are fine.
        """


class NGramDrafter:
    """Prompt lookup (Saxena 2023): guess the tokens that followed the same few tokens earlier in the sequence."""

    def propose(self, asked: Ordered[tuple[Sequence, int]]) -> list[list[int]]:
        return [continuation(sequence.tokens, count) for sequence, count in asked]


def continuation(tokens: list[int], count: int) -> list[int]:
    """Copy `count` tokens from after an earlier occurrence of the text's ending; [] if there is none.

    The copy may reach its own beginning: it then continues with the tokens just copied, so a repetition goes on.
    """
    match = seen_before(tokens)
    if match is None:
        return []
    text = list(tokens)
    for place in range(match, match + count):
        text.append(text[place])
    return text[len(tokens) :]


def seen_before(tokens: list[int]) -> int | None:
    """Find where the text continues after the last earlier occurrence of its ending; None if the ending is new.

    A longer ending is better evidence, so it is looked for first: LONGEST tokens, down to SHORTEST.
    """
    for size in range(LONGEST, SHORTEST - 1, -1):
        ending = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == ending:
                return start + size
    return None
