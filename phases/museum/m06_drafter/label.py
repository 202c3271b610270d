"""The label of exhibit 6: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="The block that a drafter needs again is dropped at every look, until no block remains.",
    phase="p08",
    hints=(
        "With one group, a hit is one block shorter, as it should be. With two groups it is empty. Print `length` "
        "in the loop of `hit`. When does the loop end?",
        "`look` does two things: it asks a group, and it removes a block. The loop repeats it until nothing "
        "changes, and with a drafter something always changes. How many blocks should a hit lose in all?",
        "Let the groups agree as if there were no drafter. Then shorten the result by a block, once, and let them "
        "agree again with that as the limit: a window may lack the blocks that the shorter hit needs.",
    ),
    story="EAGLE-style drafters read the target's hidden states, which no cache keeps, so vLLM drops the last "
    "matched block of a prefix. That rule was right for one kind of layer. For windows it was corrected within "
    "days: of four blocks only two are kept, and without the last one the window is incomplete. Then models with "
    "several kinds of layers arrived. The lookup became a loop that asks all kinds until they agree, and the drop "
    "was inside the loop, so each round lost another block. vLLM's developers call it the spiral. The answers stay "
    "right, so only the hit rate shows it. A report on a related collapse measured a hit rate of 0 % with the drop "
    "and 48.6 % without it. The time to first token was 12 times as long.",
    sources=(
        ("vLLM #33524, prefix cache hit rate == 0", "https://github.com/vllm-project/vllm/pull/33524"),
        ("vLLM #17398, windows and the dropped block", "https://github.com/vllm-project/vllm/pull/17398"),
        ("vLLM #39171, apply the adjustment once", "https://github.com/vllm-project/vllm/pull/39171"),
        ("vLLM #51771, the drop measured", "https://github.com/vllm-project/vllm/issues/51771"),
    ),
    moral="A step that is repeated until nothing changes must not change anything by itself; and a cache needs a "
    "test of its hits, because the answers are right even if it never hits.",
)
