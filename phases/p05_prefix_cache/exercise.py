"""The student writes the prefix index's three verbs: find a beginning, enter pages, forget a page."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="src/gradus/cache/radix.py",
    functions={
        "PrefixIndex.match": (
            "Walk from the root as far as the tree agrees with the tokens. `_advance` takes one node at a time and "
            "says how many pages it passed; where must the walk end even if the tree goes on?",
            "A Cursor at the root with the salt; advance it up to page (len(tokens) - 1) // page_size until it moves "
            "no more, and after each node append the pages just passed to each group's table. `_usable` then says "
            "how many of the pages found can be hit: the cursor steps back to there, and what lies before a window "
            "is 0.",
            "while steps := self._advance(cursor, tokens, longest): the pages passed are run[last - steps : last] of "
            "each group's run, with last = cursor.depth - cursor.node.start · hit = cursor.depth = "
            "self._usable(found), cursor.find() · each table is [0] * first + table[first:hit], first being "
            "first_page(hit * page_size, window, page_size).",
        ),
        "PrefixIndex.insert": (
            "A commit enters the pages that a step has filled, from where the sequence's cursor is. Somebody else "
            "may have entered the same tokens meanwhile, or evicted the place where the cursor was.",
            "First let the cursor find its place; if that was evicted, nothing that comes after it could be found, "
            "so nothing is entered. Then pass whatever the tree has already: `_merge` tells which pages are there "
            "twice. What is left up to `end` is new: `_grow`.",
            "if not cursor.find(): return [] · while steps := self._advance(cursor, tokens, end): duplicates += "
            "self._merge(cursor, tables, steps) · if cursor.depth < end: self._grow(cursor, tokens, tables, end) · "
            "return the duplicates.",
        ),
        "PrefixIndex.remove": (
            "`owners` knows the node of a page. What else can nobody use once this page is gone? It depends on the "
            "layer group.",
            "Find the group whose run in the node has the page, and its place there. In a group without a window "
            "nobody gets past a missing page: forget the node from that place on, and all below it (`_cut`). In a "
            "group with a window only this page goes: its entry becomes 0, and nobody owns it any more.",
            "group = the one whose run has page in it · place = node.pages[group].index(page) · no window: return "
            "self._cut(node, place) · otherwise node.pages[group][place] = 0, del self.owners[page], "
            "self._prune(node), return [page].",
        ),
    },
    text="Write the index that finds a prompt's beginning among everything computed before: match at admission, "
    "insert at commit, remove when a page is evicted. The helpers that split and lengthen nodes are given; what "
    "you decide is what may be shared, and what is of no use any more. No tensor is touched, and no reference "
    "counted.",
    tests=("tests/cache/test_radix.py",),
)
