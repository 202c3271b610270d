"""A prefix cache for layers of several kinds, with a drafter that needs the last block of a hit computed again.

The drafter reads hidden states of the target model. A cache keeps keys and values, not hidden states, so with a drafter
a hit is one block shorter. Layers with a sliding window keep few blocks, so all groups of layers must agree on a hit.

With a drafter, a follow-up question took as long as the first one, but only on models with windows.
"""


class Group:
    """The blocks that one kind of layer has kept of a prompt. window: how many it needs before a position; 0: all."""

    def __init__(self, blocks: set[int], window: int = 0) -> None:
        self.blocks = blocks
        self.window = window

    def longest(self, limit: int) -> int:
        """The longest hit, of at most `limit` blocks, after which these layers can go on."""
        for length in range(limit, 0, -1):
            first = max(0, length - self.window) if self.window else 0
            if self.blocks.issuperset(range(first, length)):
                return length
        return 0


class PrefixCache:
    """Knows how much of a prompt need not be computed."""

    def __init__(self, groups: list[Group], drafter: bool) -> None:
        self.groups = groups
        self.drafter = drafter

    def hit(self, blocks: int) -> int:
        """The blocks to reuse of a prompt of `blocks` blocks: asks every group until all agree."""
        if len(self.groups) == 1:
            return self.look(self.groups[0], blocks)
        length, before = blocks, -1
        while length != before:
            before = length
            for group in self.groups:
                length = self.look(group, length)
        return length

    def look(self, group: Group, limit: int) -> int:
        """A group's longest hit, without the block that the drafter needs computed again."""
        length = group.longest(limit)
        return max(0, length - 1) if self.drafter else length


def show() -> None:
    everything = set(range(8))
    print("of a conversation of 8 blocks, reused   without drafter   with drafter")
    for name, groups in (
        ("full attention", [Group(everything)]),
        ("full attention and windows", [Group(everything), Group(everything, window=2)]),
    ):
        hits = [PrefixCache(groups, drafter).hit(8) for drafter in (False, True)]
        print(f"{name:40}{hits[0]:15}{hits[1]:15}")
