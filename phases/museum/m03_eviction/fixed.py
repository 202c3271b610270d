"""Idle pages wait in a line, in the order of their release, so the next one to evict is always the first."""

from collections import OrderedDict

from phases.museum.m03_eviction import engine
from phases.museum.m03_eviction.engine import Page


class Pool(engine.Pool):
    """Keeps its idle pages in order, by content, instead of searching for the oldest."""

    def __init__(self, size: int) -> None:
        self.pages = [Page() for _ in range(size)]
        self.fresh = list(self.pages)
        self.known: dict[str, Page] = {}
        self.idle: OrderedDict[str, Page] = OrderedDict()
        self.clock = self.looks = 0

    def take(self, content: str) -> Page:
        """Start using the page with this content, known or new. Raises RuntimeError if all pages are in use."""
        page = self.known.get(content)
        if page is None:
            page = self.fresh.pop() if self.fresh else self.evict()
            self.fill(page, content)
        self.idle.pop(content, None)
        page.users += 1
        return page

    def evict(self) -> Page:
        """Choose the page without users that was released first."""
        if not self.idle:
            raise RuntimeError(f"all {len(self.pages)} pages are in use")
        return self.idle.popitem(last=False)[1]

    def release(self, page: Page) -> None:
        """Stop using a page. It stays known."""
        page.users -= 1
        if page.users == 0:
            self.idle[page.content] = page
