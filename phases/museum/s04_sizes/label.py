"""The label of slow exhibit 4: what happened, and what it teaches."""

from gradus.course.museum import SlowLabel

LABEL = SlowLabel(
    fault="The largest batches have no graph, because the sizes stop at the last multiple of eight.",
    phase="p10",
    hints=(
        "250 steps, and `launch` was called 20,150 times. Which steps launch once, and which launch 200 times?",
        "Print `sizes(20)`. Which batches fit into none of these, and when does a server have such batches?",
        "The largest batch needs a graph of its own size. Rounding up to 24 would need more rows than the device has "
        "memory for, and a graph for each number of rows would take 20 of them.",
    ),
    look="python -m cProfile -s ncalls exercises/museum/sizes.py | head -11",
    seen="`launch` was called 20,150 times in 250 steps. If all steps were replayed, it would be 250.",
    gave="In vllm-ascend, such steps ran 7.5 times as slow as replayed ones; in SGLang, about 4 times. Here, a step of "
    "20 users went from 1.1 ms to 0.23.",
    story="vLLM records graphs for 1, 2, 4 and multiples of 8, up to twice the number of sequences, which covers that "
    "number. vllm-ascend left the factor of two out to save memory: with max_num_seqs = 20, batches of 17 to 20 had "
    "no graph. vLLM has since found the same cliff for its widest decode graphs with 100 sequences, where 97 to 100 "
    "fell off. In SGLang, two defaults were derived without a look at one another: graphs up to 32 rows, and up to "
    "4096 requests. There a server does not come back: slower steps make requests stay longer, more of them run at "
    "once, and the batch remains above the largest graph. In 46 such transitions, not one ended by itself. All "
    "three were silent, for a fallback is no error. p10's list of sizes ends with the most that its engine admits.",
    sources=(
        ("vllm-ascend #16049, off-stride sizes", "https://github.com/vllm-project/vllm-ascend/issues/16049"),
        ("vLLM #57355, the cliff at full load", "https://github.com/vllm-project/vllm/pull/57355"),
        ("SGLang #33483, two defaults, one absorbing state", "https://github.com/sgl-project/sglang/issues/33483"),
        ("SGLang #33900, a warning", "https://github.com/sgl-project/sglang/pull/33900"),
    ),
    moral="Count the times that a fast path was missed, and test it at the largest batch that the scheduler can make, "
    "because that is where a server is when it matters.",
)
