"""The label of exhibit 3: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="Each eviction walks the whole pool to find one page.",
    phase="p05",
    hints=(
        "Nothing is slow while there are fresh pages. What does the engine do for every new page once they are "
        "gone, and on what does its cost depend?",
        "`evict` looks at all pages, those in use among them, to find the one released first. But releases happen "
        "one after the other, so their order is known without a search. Which function could record it?",
        "Keep the idle pages in a collection that remembers the order of entry, such as an OrderedDict. A page "
        "enters at its end with its last user's release, leaves when it is taken again, and the first one is "
        "evicted.",
    ),
    story="At every eviction, SGLang's radix cache collected all leaves of its tree. On a loaded server the pool "
    "is always full, so every allocation paid for a walk: 7 ms in the report, and 0.5 ms once the set of evictable "
    "leaves was kept up to date instead. Eight months later sglang-omni, which builds on that cache, found that a "
    "heap built anew per call still cost time in proportion to the leaves. With 23,000 of them an eviction took "
    "7.4 ms at the median and 633 ms at the 99th percentile; with a heap that persists, 0.06 and 0.7 ms. The "
    "report explains why benchmarks had missed it: until the pool is full, the cost is zero. Gradus had the fault "
    "twice. A prototype spent 355 ms per schedule of 256 sequences on finding out what it could evict, and the "
    "first final engine listed a 256th of the pool per eviction. Now a page from a full pool costs what one from "
    "an empty pool does.",
    sources=(
        ("SGLang #14339, optimize radix cache eviction", "https://github.com/sgl-project/sglang/pull/14339"),
        ("sglang-omni #1723, O(leaves) heap rebuild", "https://github.com/sgl-project/sglang-omni/issues/1723"),
        ("sglang-omni #1724, persistent lazy heap", "https://github.com/sgl-project/sglang-omni/pull/1724"),
    ),
    moral="Measure with a full pool, because a server has no other; and compare two sizes, so a cost that grows "
    "with the pool shows itself.",
)
