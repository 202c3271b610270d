"""The groups agree first. Then the drafter's block is given up, once, and they agree on the shorter hit."""

from phases.museum.m06_drafter import engine
from phases.museum.m06_drafter.engine import Group as Group


class PrefixCache(engine.PrefixCache):
    """Gives up one block per hit, not one per question."""

    def hit(self, blocks: int) -> int:
        """The blocks to reuse of a prompt of `blocks` blocks: asks every group until all agree."""
        agreed = self.agree(blocks)
        return self.agree(agreed - 1) if self.drafter and agreed else agreed

    def agree(self, limit: int) -> int:
        length, before = limit, -1
        while length != before:
            before = length
            for group in self.groups:
                length = group.longest(length)
        return length
