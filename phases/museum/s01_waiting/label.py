"""The label of slow exhibit 1: what happened, and what it teaches."""

from gradus.course.museum import SlowLabel

LABEL = SlowLabel(
    fault="Every step sorts all that waits, by an urgency that it computes anew.",
    phase="p03",
    hints=(
        "Eight rows are eight rows. What does a step do that depends on the requests it does not run? Read the column "
        "`ncalls` of the profile, and divide by the steps.",
        "Nobody is admitted while the slots are taken, and the queue is sorted all the same. The key looks as if it "
        "changed with every step, since all have waited longer. Does that ever change who comes before whom?",
        "Two requests keep their order for as long as they wait: by priority, then by arrival. So decide it once, when "
        "a request arrives: a heap of (priority, arrival, request). A request that hangs up can stay in the heap "
        "until its turn, and be skipped there; taking it out of the middle would break the heap.",
    ),
    look="python -m cProfile -s tottime exercises/museum/waiting.py | head -9",
    seen="`urgency` is called 1,110,032 times in 400 steps, none of which runs more than 8 requests.",
    gave="vLLM's throughput no longer depended on the queue: 695 requests per second with 1,000 prompts, 657 with "
    "100,000. Here, a step with 10,000 requests in the queue went from 1.2 ms to 0.005.",
    story="An early pull request stopped vLLM from sorting its waiting queue. Another replaced its lists by deques, "
    "since taking the first element out of a list moves all others. A third found that each step still copied the "
    "whole queue, and removed a sort that changed nothing, because a queue in order of arrival is sorted already. When "
    "priorities came to the new engine, they came with a heap, and its review asked what happens to requests that are "
    "canceled one by one, each by a search. That was still to be found: each removal searched the heap and rebuilt it, "
    "which a later pull request measured as 24 µs among 512 requests, against 0.3 when the request is only marked and "
    "skipped at its turn. None of it shows in a benchmark that sends as many requests as there are slots. The final "
    "engine keeps its queue as a heap under every policy.",
    sources=(
        ("vLLM #93, no sorting of the waiting queue", "https://github.com/vllm-project/vllm/pull/93"),
        ("vLLM #2290, deques instead of lists", "https://github.com/vllm-project/vllm/pull/2290"),
        ("vLLM #6867, no copy and no sort per step", "https://github.com/vllm-project/vllm/pull/6867"),
        ("vLLM #19057, priorities as a heap", "https://github.com/vllm-project/vllm/pull/19057"),
        ("vLLM #39495, marked and skipped", "https://github.com/vllm-project/vllm/pull/39495"),
    ),
    moral="Count what a step does to requests that it does not run, with a queue a hundred times longer than the "
    "batch.",
)
