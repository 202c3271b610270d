"""The label of exhibit 7: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="A request without a grammar is sampled through the mask of its slot's former owner.",
    phase="p03",
    hints=(
        "Ben has no grammar either, and his answer is right. What is different about their slots? Look at which "
        "request each slot had before.",
        "Zeros are the first of Ann's digits. The table of masks outlives her, and `fill_masks` writes some of its "
        "rows while `step` reads all of them.",
        "Write all the rows that are read: each running request gets its row in every step, and one without a "
        "grammar gets a row that forbids nothing.",
    ),
    story="SGLang's llguidance backend kept its bitmask from step to step instead of making a new one, and filled "
    "only the rows of requests with a grammar. The mask was applied to all rows, so a plain request in a slot that "
    "had served JSON could choose only among JSON's tokens. It was reported in June 2025, with a fix that was not "
    "merged, and repaired ten months later. The xgrammar backend allocated a fresh mask per call, so only some "
    "servers were affected. vLLM's Gaudi port had it the other way round: rows of plain requests began as zeros, "
    "which allow nothing, and the sampler answered with exclamation marks.",
    sources=(
        ("SGLang #23653, stale bitmask leakage", "https://github.com/sgl-project/sglang/pull/23653"),
        ("SGLang #7321, the first report with a fix", "https://github.com/sgl-project/sglang/pull/7321"),
        ("vllm-gaudi #1200, mixed batches", "https://github.com/vllm-project/vllm-gaudi/pull/1200"),
    ),
    moral="Write every row that will be read, and test each feature in one batch with requests that do not use it, "
    "next to it and after it.",
)
