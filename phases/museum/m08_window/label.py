"""The label of exhibit 8: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="Pages that a sliding window gave back are shared as a prefix when the sequence ends.",
    phase="p05",
    hints=(
        "Two words of the last prompt come from the cache, and they are the wrong words. Print `free` and `known` "
        "after the first prompt. Is there a page in both?",
        "`slide` gives a page back and leaves its number in the list, because places are counted by it. `finish` "
        "reads the list from the start. Which of those pages does the sequence still have?",
        "Only those from `slid` on. And a prefix with a hole is useless: once the window has left a page behind, "
        "the later pages cannot be found from the beginning, so give them back instead of making them known.",
    ),
    story="A pull request for SGLang describes this in its cache for models whose layers all have windows. While a "
    "request decodes, pages behind the window go back to the pool. When it finishes, its whole prefix enters the "
    "radix tree, those pages included. A later match returns them, although the pool has given them to other "
    "requests, and evicting the entry frees them a second time. AMD's ATOM had the same symptom for another "
    "reason: keys of windows lay in a ring per request, outside the prefix cache, so a hit read a ring that was "
    "stale or empty. With the prefix cache off, both faults disappear, and neither shows with prompts shorter than "
    "the window.",
    sources=(
        ("SGLang #31486, do not re-cache evicted KV", "https://github.com/sgl-project/sglang/pull/31486"),
        ("ATOM #1423, prefix-cache corruption", "https://github.com/ROCm/ATOM/pull/1423"),
    ),
    moral="A page is free, known or in use, and a random test should check that after every request, with prompts "
    "longer than the window among them.",
)
