"""The student writes how a sequence grows by pages, and what happens when there are none left: two files."""

from gradus.course import Exercise

GROWTH = Exercise(
    file="src/gradus/cache/paged.py",
    functions={
        "PagedCache._extend": (
            "`resident.tables` are the block tables, all equally long. How long must they be for position end - 1 to "
            "have a page? And what must be true before the first page is taken?",
            "First give back what a window no longer sees: those pages may be the ones that are needed. Count the "
            "entries that are missing (a page for every begun page_size positions, less those there are); every group "
            "needs that many. If fewer are `available`, count a refusal and leave everything as it is. Otherwise each "
            "table grows, and the resident has more `room`.",
            "self._give_back(resident); wanted = -(-end // self.page_size) - len(resident.tables[0]); if wanted * "
            "len(self.windows) > self.available: self.refusals += 1, return False; for each table: table += "
            "self._take(wanted); resident.room = len(resident.tables[0]) * self.page_size; return True.",
        ),
        "PagedCache._give_back": (
            "The next span starts at resident.stored. Its first query sees furthest back, so what that one cannot see, "
            "nobody will. `first_page` (windows.py) knows which page that is.",
            "In each group, drop the pages from entry resident.first[group] up to the first one that is still seen. "
            "The table keeps its length: entry i is always the page of positions i * page_size on, so a page that is "
            "gone leaves a 0. Remember how far you came; and of the entries from there on, whoever keeps a copy of the "
            "tables has been `told` otherwise.",
            "For group and window: seen = first_page(resident.stored, window, self.page_size); self.pool.drop each "
            "page of table[first:seen]; if there are any, resident.told = min(resident.told, first); "
            "table[first:seen] = [0] * (seen - first); resident.first[group] = seen. Without a window, seen is 0 and "
            "nothing happens.",
        ),
    },
    text="Let a sequence live on pages. It gets one more in each layer group whenever it enters one, all it needs or "
    "none at all: a sequence that was refused must be able to try again as if nothing had been. And what a sliding "
    "window has left behind goes back to the pool before anything new is taken.",
    tests=("tests/cache/test_paged.py", "tests/cache/test_random.py::TestCache"),
)

PRESSURE = Exercise(
    file="src/gradus/scheduling/batching.py",
    functions={
        "PagedBatching.make_room": (
            "`self.cache.reserve` says whether there was room. If not, somebody must go: whose loss can never come "
            "back to hit the one who went first?",
            "As long as reserve says False, send back the worst of those who run: the one with the largest `order`, "
            "which is the one that came last (and under a policy, the one that matters least). That may be the "
            "sequence itself: then there is nothing to plan for it.",
            "while not self.cache.reserve(sequence.id, end): worst = max(self.running, key=BY_ORDER); "
            "self.preempt(worst); if worst is sequence, return False. After the loop, return True.",
        ),
        "PagedBatching.preempt": (
            "What does it hold, where does it wait from now on, and where could this very step still mention it?",
            "`release` frees its slot and its pages; it waits again, in the order it has had since it came, so it is "
            "ahead of everybody later. It counts as a preemption. If its span is in self.plan already, the pages of "
            "that span are somebody else's by now: take the span out.",
            "self.release(sequence); self.waiting.push(sequence); self.preemptions += 1; self.plan.spans[:] = the "
            "spans whose sequence is another.",
        ),
        "PagedBatching.squeeze_in": (
            "A newcomer needs pages for its first span. Why would it be unwise to let it have the last ones?",
            "Reserve its pages. Then look at what is available: those who run will each enter a new page before long, "
            "in every layer group, and if there is none, somebody goes, most likely this newcomer. With nobody "
            "running, there is nobody to think of.",
            "Return False if self.cache.reserve(sequence.id, end) does. Otherwise return whether nobody runs or at "
            "least the pages for one entry each (see `_growth`) are available for all who run. Whoever gets False is "
            "released by `enter`.",
        ),
    },
    text="Run more sequences than the memory could hold to their ends. Who comes in must leave the others a page to "
    "grow; who grows takes the pages of whoever came last, who goes back to the queue and is computed again. See to it "
    "that nobody runs on pages that are somebody else's, that nobody is lost, and that somebody always gets to the "
    "end.",
    tests=("tests/scheduling/test_batching.py",),
)

EXERCISES = (GROWTH, PRESSURE)
