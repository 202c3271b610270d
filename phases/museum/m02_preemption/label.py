"""The label of exhibit 2: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="The tokens to compute are counted before the prefix cache is asked.",
    phase="p05",
    hints=(
        "With 8 pages nothing is preempted, with 5 pages the second sequence is. No other prompt begins like its "
        "own, so at first it finds nothing in the cache. What does it find when it resumes?",
        "It finds its own pages. Follow the two numbers of the span through `plan`: one is read before `find` has "
        "run, the other after. Together they end beyond the last token.",
        "`stored` changes inside `find`. Both numbers of the span must come from the value that it has afterwards, "
        "so count the tokens at the end of `plan`.",
    ),
    story="nano-vllm's scheduler counted the tokens of a prefill and then allocated its blocks. The prefix cache "
    "answers during allocation, so a hit moved the start forward and left the count as it was. The span then ended "
    "beyond the block table, and preparing the batch raised an IndexError. The reports met it under load, with 256 "
    "and 512 requests: the pool ran out, and a preempted sequence came back and found its own blocks. Several pull "
    "requests repair it, one by counting again after the allocation, one by clamping the count.",
    sources=(
        ("nano-vllm #207, count after allocating", "https://github.com/GeeeekExplorer/nano-vllm/pull/207"),
        ("nano-vllm #211, prefix hit after preemption", "https://github.com/GeeeekExplorer/nano-vllm/pull/211"),
        ("nano-vllm #233, cached tokens grow during allocate", "https://github.com/GeeeekExplorer/nano-vllm/pull/233"),
    ),
    moral="Run the same workload with a large pool and with one that is almost too small, and compare the tokens: "
    "preemption must not be visible.",
)
