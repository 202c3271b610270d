"""A prefix cache over a pool of pages. An idle page stays known by its content until its room is needed.

Then the page that was idle for longest is evicted. In `show`, each request needs two pages of new content.

The server was fast for an hour, then slow. With twice the memory, it was twice as slow.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """content: the tokens stored in it. users: running requests that read it. last_used: the clock at its release."""

    content: str = ""
    users: int = 0
    last_used: int = 0


class Pool:
    """Pages by content. looks: how many pages were examined to find the ones to evict."""

    def __init__(self, size: int) -> None:
        self.pages = [Page() for _ in range(size)]
        self.fresh = list(self.pages)  # those that have never held anything
        self.known: dict[str, Page] = {}
        self.clock = self.looks = 0

    def take(self, content: str) -> Page:
        """Start using the page with this content, known or new. Raises RuntimeError if all pages are in use."""
        page = self.known.get(content)
        if page is None:
            page = self.fresh.pop() if self.fresh else self.evict()
            self.fill(page, content)
        page.users += 1
        return page

    def evict(self) -> Page:
        """Choose the page without users that was released first."""
        idle = [page for page in self.pages if self.is_idle(page)]
        if not idle:
            raise RuntimeError(f"all {len(self.pages)} pages are in use")
        return min(idle, key=lambda page: page.last_used)

    def is_idle(self, page: Page) -> bool:
        self.looks += 1
        return page.users == 0

    def fill(self, page: Page, content: str) -> None:
        """Give a page new content, and forget what it held."""
        self.known.pop(page.content, None)
        page.content = content
        self.known[content] = page

    def release(self, page: Page) -> None:
        """Stop using a page. It stays known."""
        page.users -= 1
        self.clock += 1
        page.last_used = self.clock


def show() -> None:
    print("pages examined during   request 1   request 100   request 250")
    for size in (200, 400):
        pool, looks = Pool(size), []
        for request in range(1, 251):
            before = pool.looks
            for page in [pool.take(f"request {request}, page {number}") for number in (1, 2)]:
                pool.release(page)
            looks.append(pool.looks - before)
        print(f"pool of {size} pages {looks[0]:15} {looks[99]:13} {looks[249]:13}")
