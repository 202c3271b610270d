"""Which of several replicas gets a request? The one that knows most of its prompt, unless that one has too much to do.

A prompt is named by its blocks: each full block's name depends on all tokens before it, so equal names mean equal
beginnings (p05). The router keeps, for each replica, the names that the replica's cache should still have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

BLOCK = 16  # tokens
Name = bytes


def names(prompt: Sequence[int], salt: str = "", size: int = BLOCK) -> list[Name]:
    """A name for each full block of a prompt, made of the salt and of all tokens up to the block's end."""
    found, before = [], blake2b(salt.encode()).digest()
    for start in range(0, len(prompt) - size + 1, size):
        block = ",".join(map(str, prompt[start : start + size]))
        before = blake2b(before + block.encode()).digest()
        found.append(before)
    return found


@dataclass(slots=True)
class Replica:
    """What the router knows of a replica. room: the blocks that its cache holds. inside: requests under way.

    known: the names of its blocks, the one unused for longest first.
    """

    room: int
    inside: int = 0
    known: dict[Name, None] = field(default_factory=dict)

    def matched(self, prompt: Sequence[Name]) -> int:
        """How many blocks at the beginning of a prompt it has: up to the first that is missing."""
        return next((place for place, name in enumerate(prompt) if name not in self.known), len(prompt))

    def take(self, prompt: Sequence[Name]) -> None:
        """Note that it now has these blocks, and has lost those for which there is no more room.

        A prompt's end is dropped before its beginning, which more prompts share.
        """
        for name in reversed(prompt):
            self.known.pop(name, None)
            self.known[name] = None
        while len(self.known) > self.room:
            del self.known[next(iter(self.known))]


def choose(replicas: Sequence[Replica], prompt: Sequence[Name], bound: float) -> int:
    """The number of the replica that gets the request.

    If the busiest has more than `bound` requests more than the idlest: an idlest one. Otherwise the one that knows
    most of the prompt; of several, the idlest; of several again, the first.
    """
    numbers = range(len(replicas))
    loads = [replica.inside for replica in replicas]
    if max(loads) - min(loads) > bound:
        return loads.index(min(loads))
    return max(numbers, key=lambda number: (replicas[number].matched(prompt), -loads[number], -number))
