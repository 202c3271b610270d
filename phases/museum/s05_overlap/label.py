"""The label of slow exhibit 5: what happened, and what it teaches."""

from gradus.course.museum import SlowLabel

LABEL = SlowLabel(
    fault="`if len(repeated)` waits for the device, before the step that it belongs to is launched.",
    phase="p10",
    hints=(
        "The host stands still in the function `value`, where it belongs. But who called it? And how often may it be "
        "called for one word?",
        "`launch` only starts kernels, and yet it waits. Which of its lines needs a number that only the device has?",
        "The test saves a kernel that takes no time, and costs the wait for the model. Launch the kernel always: with "
        "nothing in `repeated`, it changes nothing. The host cannot know what was said either, since with a lag its "
        "own list is a word behind.",
    ),
    look="python -m phases.museum.s05_overlap.look exercises/museum/overlap.py",
    seen="The host stands in generate > launch > __len__ > value for half of the run, and the device has "
    "nothing to do meanwhile. With planning ahead, one of the two should always be busy.",
    gave="SGLang and vLLM give no figure for the sync alone; vllm-metal's planning ahead, which such a wait undoes, "
    "was worth 1.1 to 1.5 times. Here, a word went from 4.4 ms to 2.2.",
    story="`logits[mask]` looks like arithmetic. But only the device knows how many elements the mask selects, and "
    "the host has to know it to allocate the result. So torch waits, without a word. vLLM's sampler did that where it "
    "penalizes repetitions, and torch.cuda.set_sync_debug_mode, which warns at such lines, found it. Fourteen months "
    "later SGLang replaced one in its penalty for short answers by torch.where, after a report that decoding had "
    "become slower. In its speculation, the host waits in each step for lengths that only the width of a table "
    "needs; a pull request shows that a bound which the host has would do. A profile by function blames `.cpu()` or "
    "`.item()` for all that the GPU does before it: one user of vLLM found 90 % of the time in such a call, and "
    "a maintainer explained that the wait is not where the work is.",
    sources=(
        ("vLLM #16436, a sync in the sampler", "https://github.com/vllm-project/vllm/pull/16436"),
        ("SGLang #28397, a sync in a penalty", "https://github.com/sgl-project/sglang/pull/28397"),
        ("SGLang #27979, a sync for an upper bound", "https://github.com/sgl-project/sglang/pull/27979"),
        ("vLLM #3384, a profile that blames .cpu()", "https://github.com/vllm-project/vllm/issues/3384"),
        ("PyTorch #12461, implicit sync points", "https://github.com/pytorch/pytorch/issues/12461"),
        ("vllm-metal #588, one step ahead", "https://github.com/vllm-project/vllm-metal/pull/588"),
    ),
    moral="Count the waits per step, and let a test refuse the second one, because a wait takes its time from a line "
    "that did nothing wrong.",
)
