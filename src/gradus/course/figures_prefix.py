"""p05's figures: a radix tree that grows and splits, and what leaves it first. Drawn from the lesson's cache at work.

Tokens are words here, and a page has two of them.
"""

from collections.abc import Callable

from gradus import phases
from gradus.cache.inspection import TreeNode
from gradus.course.drawing import FREE, KEPT, NEW, WASTE, Drawing, Kind

PAGE_SIZE = 2
PROMPTS = {
    "Ann": "Be kind and brief. Make me a poem",
    "Ben": "Be kind and brief. Make me a summary",
    "Cy": "Be kind and brief. How much is 2+2?",
}
LEFT, CELL, HEIGHT, FORK, ROW = 8, 132, 36, 28, 46


class Story:
    """The prefix cache, told in words."""

    def __init__(self, pages: int) -> None:
        self.cache = phases.find("p05").module("cache").PrefixCache(pages, PAGE_SIZE)
        self.words: list[str] = []

    def run(self, name: str) -> int:
        """What a scheduler does with a prompt, up to the first commit. Returns how many pages were hit."""
        tokens = [self._token(word) for word in PROMPTS[name].split()]
        hit: int = self.cache.admit(name, tokens, salt=None)
        assert self.cache.reserve(name, len(tokens))
        self.cache.publish(name, tokens, salt=None)
        self.cache.check()
        return hit // PAGE_SIZE

    def held(self, name: str) -> tuple[int, ...]:
        (table,) = self.cache.tables(name)
        return tuple(table)

    def _token(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def draw(self, drawing: Drawing, top: float, kind: Callable[[int], Kind], number: Callable[[int], str]) -> None:
        """The tree, from left to right: a frame per node, a cell per page, with its number or what is said instead."""
        drawing.words(LEFT, top + 24, "root")
        row = 0
        for child in self.cache.tree():
            start = LEFT + 44, top + HEIGHT / 2
            row = self._draw(drawing, child, (start[0] + FORK, top), row, start, kind, number)

    def _draw(
        self,
        drawing: Drawing,
        node: TreeNode,
        corner: tuple[float, float],
        row: int,
        start: tuple[float, float],
        kind: Callable[[int], Kind],
        number: Callable[[int], str],
    ) -> int:
        """One node and all below it, from `row` on; an edge comes from `start`. Returns the first row that is free."""
        x, top = corner
        middle = top + row * ROW + HEIGHT / 2
        half = start[0] + FORK / 2
        drawing.arrow(start, (half, start[1]), (half, middle), (x, middle), head=False)
        width = len(node.pages[0]) * CELL
        drawing.rectangle(x, middle - HEIGHT / 2 - 3, width, HEIGHT + 6, FREE)
        for place, page in enumerate(node.pages[0]):
            tokens = node.tokens[place * PAGE_SIZE : (place + 1) * PAGE_SIZE]
            words = " ".join(self.words[token] for token in tokens)
            cell = x + place * CELL + 3
            drawing.cell(cell, middle - HEIGHT / 2, CELL - 6, HEIGHT, kind(page), f"{number(page)} {words}".strip())
        free = row
        for child in node.children:
            free = self._draw(drawing, child, (x + width + FORK, top), free, (x + width, middle), kind, number)
        return max(free, row + 1)


# -- the tree grows ----------------------------------------------------------------------------------------------------


def growing() -> Drawing:
    """Three prompts, one after the other: each is drawn when its first step has been committed."""
    story, hits = Story(pages=16), {}
    drawing = Drawing("A radix tree over pages splits where prompts part", 432)
    top = 0.0
    for rows, name in enumerate(PROMPTS, 1):
        hits[name] = story.run(name)
        fresh = set(story.held(name)[hits[name] :])
        drawing.words(LEFT, top + 18, f"{name}: “{PROMPTS[name]}”", bold=True)
        drawing.words(792, top + 18, f"{hits[name]} of {len(story.held(name))} pages hit", anchor="end")
        story.draw(drawing, top + 34, lambda page, fresh=fresh: NEW if page in fresh else KEPT, str)  # type: ignore[misc]
        top += 40 + rows * ROW
    drawing.legend(
        424, [(NEW, "page by number, computed for this prompt"), (KEPT, "page that was there"), (FREE, "a node")]
    )
    return drawing


# -- the tree shrinks --------------------------------------------------------------------------------------------------


def evicting() -> Drawing:
    """Draw the tree after Ann's and Cy's sequences have ended, and after a newcomer that lacks two free pages."""
    story = Story(pages=9)
    for name in PROMPTS:
        story.run(name)
    for name in ("Ann", "Cy"):
        story.cache.release(name)
    pool = story.cache.pool
    turns = {page: f"{turn}." for turn, page in enumerate(pool.idle, 1)}
    running = set(story.held("Ben"))
    free, needed = len(pool.free), len(pool.free) + 2
    drawing = Drawing("Idle pages leave in the order in which they became idle: every path from its end", 362)

    def show(top: float, title: str) -> None:
        drawing.words(LEFT, top + 18, title, bold=True)
        story.draw(drawing, top + 34, lambda page: NEW if page in running else WASTE, lambda page: turns.get(page, ""))

    show(0, f"Ann's answer has ended, then Cy's; {free} of {pool.count} pages are free. Which go first?")
    assert story.cache.reserve("newcomer", needed * PAGE_SIZE)
    story.cache.check()
    show(180, f"A newcomer took {needed} pages: {free} that were free, and {story.cache.evictions} evicted ones")
    drawing.legend(352, [(NEW, "held for Ben: never evicted"), (WASTE, "idle, with its turn to be evicted")])
    return drawing
