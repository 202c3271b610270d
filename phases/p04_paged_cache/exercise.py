"""The student writes how a sequence grows by pages, what happens when none is left, and how attention finds rows."""

from gradus.exercises import Exercise

GROWTH = Exercise(
    file="phases/p04_paged_cache/cache.py",
    functions={
        "PagedCache.missing": (
            "`pages_for` says how many pages a number of positions begins. Some of them are in the sequence's block "
            "table already. A sequence never seen has no table.",
            "Subtract the table's length from the pages for `end` positions. A table that is long enough lacks none, "
            "so the result is never below 0.",
            "return max(0, self.pages_for(end) - len(self.block_tables.get(id, ())))",
        ),
        "PagedCache.reserve": (
            "All or nothing: ask whether there is room before you change anything. A sequence that was refused must be "
            "able to try again as if nothing had happened.",
            "`has_room` answers the question, `missing` counts the pages, `take` gets them. The new pages go to the "
            "end of the block table; for a new sequence the table begins empty. Then `end` positions count as stored.",
            "if not self.has_room(id, end): return False. Take self.take(self.missing(id, end)) and extend "
            "self.block_tables.setdefault(id, []) by it; self.lengths[id] = end; return True.",
        ),
        "PagedCache.release": (
            "What does the cache keep of a sequence? Both entries go. `release` is also called for sequences that the "
            "cache has never seen.",
            "Pop the length and the block table, with a default for a sequence that has none. Each page of the table "
            "is given back with `self.pool.drop`, the last one first (p05 will need that order).",
            "self.lengths.pop(id, None), then self.pool.drop(*reversed(self.block_tables.pop(id, []))).",
        ),
    },
    text="Let a sequence live on pages. It gets one more page when it enters one, and all the pages it needs or none. "
    "The pool hands out page numbers and counts references (src/gradus/cache/pool.py); which page holds which "
    "positions is the block table's to say.",
    why={
        "PagedCache.missing": (
            "It counts and changes nothing, so `has_room` and `reserve` can share it. The `max` is for a table that "
            "is already long enough, as after a preempted sequence found some of its pages again (p05)."
        ),
        "PagedCache.reserve": (
            "The question comes first and the changes after it, all or nothing. `setdefault` treats a new sequence "
            "as one with an empty table, so there is no first time to forget."
        ),
        "PagedCache.release": (
            "Pages go back last first. Here any order would do; with a prefix cache the end of a sequence must be "
            "evicted before its beginning, because the end is useless alone."
        ),
    },
)

PRESSURE = Exercise(
    file="phases/p04_paged_cache/scheduler.py",
    functions={
        "PagedBatching.may_start": (
            "A newcomer needs pages for its first span. Why would it be unwise to let it have the last ones?",
            "Each running sequence enters a new page before long. If none is left by then, one of them is preempted, "
            "most likely the newcomer itself. So ask `has_room` for the end of the newcomer's span, and for one spare "
            "page per running sequence.",
            "return self.cache.has_room(sequence.id, self.end_of_span(sequence), spare=len(self.running))",
        ),
        "PagedBatching.make_room": (
            "While `has_room` says no for the end of this sequence's span, a sequence must go. Which one, so that the "
            "first of all can never be preempted?",
            "Preempt the one that came last, the last of `running`, and ask again. It may be the sequence itself: then "
            "it is out, and there is nothing to plan for it.",
            "while not self.cache.has_room(sequence.id, self.end_of_span(sequence)): last = self.running[-1]; "
            "self.preempt(last); if last is sequence: return False. After the loop, return True.",
        ),
        "PagedBatching.preempt": (
            "What does the sequence hold, and where in the queue does it belong? Everything that waits came later.",
            "`release` frees its slot and its pages. It waits again at the head of the queue, and keeps the tokens it "
            "has: prompt and output are what it computes when it returns. Count it in `preemptions`.",
            "self.release(sequence); self.waiting.appendleft(sequence); self.preemptions += 1",
        ),
    },
    text="Run more sequences to their ends than memory can hold at once. A newcomer leaves the others a page each to "
    "grow into. When pages run out, the sequence that came last goes back to the queue and is computed again. No "
    "sequence may run on pages that it has lost, none may be forgotten, and the first one must always advance.",
    why={
        "PagedBatching.may_start": (
            "The spare pages keep newcomers from taking what the running sequences need next. Without them nothing "
            "breaks, but a newcomer is admitted, computes its prompt, and is preempted a few steps later."
        ),
        "PagedBatching.make_room": (
            "The last one goes first, so the oldest sequence always advances and the engine cannot livelock. When "
            "the sequence that asks is itself the last one, it has to go: preempting an older one would turn the "
            "order around."
        ),
        "PagedBatching.preempt": (
            "The pages are dropped and the tokens kept, so the sequence is computed again later instead of being "
            "copied away. It returns to the head of the queue: it came before everything that waits there."
        ),
    },
)

GATHER = Exercise(
    file="phases/p04_paged_cache/attention.py",
    functions={
        "rows_of": (
            "In which entry of its block table is a position, and where on that page?",
            "Position p is in entry p // page_size. A page is page_size rows, one after the other, and the position is "
            "row p % page_size of them. `tables.gather(1, entries)` looks up the entries of all sequences at once.",
            "return tables.gather(1, positions // page_size) * page_size + positions % page_size",
        ),
        "GatherAttention.attend": (
            "The same two acts as ever: store (unless k and v are None), then attend. `prepare` has worked out the "
            "rows: of new tokens (`new_rows`), of each prompt (`prompts`: where it is in the batch, and the rows it "
            "sees), and of all decodes (`decode_rows` in the batch, `decode_seen` in the storage).",
            "`self.storage.store` takes k and v to the new rows; `self.storage.rows` has all keys and values of the "
            "layer by row. For each prompt, index keys and values by the rows it sees, and call `attend_prompt`; then "
            "do the same for the decodes at once with `attend_decodes`, if there are any. Results go to the batch's "
            "rows of an empty tensor like q.",
            "if k is not None: self.storage.store(layer, self.new_rows, k, v); keys, values = "
            "self.storage.rows(layer); out = torch.empty_like(q); for span, rows in self.prompts: out[span] = "
            "self.attend_prompt(layer, q[span], keys[rows], values[rows], sinks); if len(self.decode_rows): rows = "
            "self.decode_seen; out[self.decode_rows] = self.attend_decodes(layer, q[self.decode_rows], keys[rows], "
            "values[rows], sinks); return out",
        ),
    },
    text="Find keys and values through the block tables. A position becomes a row of the storage; the rows that a "
    "sequence sees are gathered side by side, and attention itself is p03's.",
    why={
        "rows_of": (
            "One gather looks up the pages of all positions, whatever their shape. Division and remainder find "
            "entry and row, so no table of positions is ever stored."
        ),
        "GatherAttention.attend": (
            "Prompts attend one by one and decodes all at once: prompts are long and of different lengths, decodes "
            "are many and have one row each. The gathered copies are the price of pages here, and what p09's kernel "
            "does away with."
        ),
    },
)

EXERCISES = (GROWTH, PRESSURE, GATHER)
