"""The label of slow exhibit 3: what happened, and what it teaches."""

from gradus.course.museum import SlowLabel

LABEL = SlowLabel(
    fault="Every step copies the whole pool, to change two rows of it.",
    phase="p04",
    hints=(
        "Two users read and write a few kilobytes in a step. Look at the column of the memory that was taken, and at "
        "the sizes of the pool: which operations take how much in 20 steps?",
        "`aten::cat` is what torch.stack does, and `aten::copy_` is inside `index_copy`. Both return a new tensor. Of "
        "what size is it, and how much of it differs from the old one?",
        "Write into the pool that is there. torch marks operations that change their tensor by an underscore at the "
        "end of the name, and `self.cache[0]` is a view: what is written to it is in the pool. Then no tensor has to "
        "be put together.",
    ),
    look="python -m phases.museum.s03_pool.look exercises/museum/pool.py",
    seen="`aten::cat` and `aten::copy_` have nearly all of the time, and cat alone took 655 MB in 20 steps: 33 MB per "
    "step, which is the size of the pool.",
    gave="On Tenstorrent's chip, OPT-125M went from 6.3 tokens per second to 80.7, at a setting that gives a fifth of "
    "the memory to the cache. Here, a step in a pool of 33 MB went from 8.6 ms to 0.05.",
    story="On Tenstorrent's chips, vLLM's tokens per second fell as its share of memory was raised. Keys and values "
    "were in one tensor, so the compiled step took the two halves out, updated them, and joined them again: three "
    "copies of the pool in each layer, for one token. Two separate tensors removed most of it. What was left, 8 %, "
    "were copies that gave the result the name of its input, since the compiler had not been allowed to use the same "
    "memory for both. tract concatenated past and present in each step; candle's measurements show that this can even "
    "win, on their GPU and with their kernel for slices, which is why such code lives so long. ONNX's page about KV "
    "caches spells the cure out: in place, in memory that was allocated before.",
    sources=(
        ("tt-xla #4197, slower with a larger pool", "https://github.com/tenstorrent/tt-xla/issues/4197"),
        ("tt-xla #4209, keys and values apart", "https://github.com/tenstorrent/tt-xla/pull/4209"),
        ("tt-xla #4208, the copies that were left", "https://github.com/tenstorrent/tt-xla/issues/4208"),
        ("tract #2321, a KV cache in place", "https://github.com/sonos/tract/pull/2321"),
        ("candle #3143, where concatenation wins", "https://github.com/huggingface/candle/pull/3143"),
        ("ONNX #7205, in-place KV cache", "https://github.com/onnx/onnx/pull/7205"),
    ),
    moral="Compare the bytes that a step writes with those that it should, at two sizes of everything that it should "
    "not depend on.",
)
