"""The student writes add and norm in one pass, the online softmax, its division among programs, and the cost of a long
prompt's chunks (the second page).

No GPU is needed: Triton interprets. The second page needs no Triton either.
"""

from gradus.exercises import Exercise

NORM = Exercise(
    file="phases/p09_triton_attention/norm.py",
    functions={
        "add_rms_norm_kernel": (
            "A program has one row: which elements are its own, by `tl.program_id(0)`, D and a lane's number? A block "
            "has a power of two of lanes, a row has D values, so every load and store needs a mask. The sum is "
            "written, then normalized: where does it stay, so that it need not be read again?",
            "Load x, delta and weight as float32, with 0 in the lanes beyond the row: they then add nothing to the "
            "mean square. Add, round to x's type and store, since later layers read that. Then take the rounded sum in "
            "float32, divide by its root mean square (with eps under the root), scale by the weight, and store y.",
            "column = tl.arange(0, BLOCK); inside = column < D; here = tl.program_id(0).to(tl.int64) * D + column · x "
            "= tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32), delta likewise, weight at weight_ptr + "
            "column · x = (x + delta).to(x_ptr.dtype.element_ty); tl.store(x_ptr + here, x, mask=inside); x = "
            "x.to(tl.float32) · scale = tl.rsqrt(tl.sum(x * x, 0) / D + eps) · tl.store(y_ptr + here, (x * scale * "
            "weight).to(y_ptr.dtype.element_ty), mask=inside).",
        ),
    },
    text="Write a first kernel: x += delta and y = norm(x), with every row read once. Triton's interpreter judges it. "
    "It runs one program after the other on the CPU, and `print` shows what a lane holds.",
    why={
        "add_rms_norm_kernel": (
            "Sum and norm share one reading of the row, which stays in registers between the two. The sum is "
            "rounded to the stored type before it is squared, so that the norm is of the very numbers that later "
            "layers read."
        ),
    },
    alone="tests/kernels/interpreted_norm.py",
    triton=True,
    interpreted=True,
    run=True,
)

SOFTMAX = Exercise(
    file="phases/p09_triton_attention/paged_attention.py",
    functions={
        "take_in": (
            "Each row has the greatest score so far, and two sums of exponentials below it. More scores come. If one "
            "of them is greater, by which factor are both sums too large? And what if a row has seen no key at all?",
            "The new peak is the greater of the old one and the greatest of the new scores. Take exp(score - peak) as "
            "weights, and exp(old peak - new peak) as the factor for what is there. Add the weights to `total`, and "
            "the weighted values to `seen` (a product of matrices). A row that has seen nothing has a peak of -inf, "
            "and -inf - -inf is NaN: subtract 0 there.",
            "new_peak = tl.maximum(peak, tl.max(score, 1)) · base = tl.where(new_peak == float('-inf'), 0.0, new_peak) "
            "· weight = tl.exp(score - base[:, None]); shrink = tl.exp(peak - base) · total = total * shrink + "
            "tl.sum(weight, 1) · seen = seen * shrink[:, None] + tl.dot(weight.to(values.dtype), values, "
            "input_precision='ieee') · return seen, total, new_peak.",
        ),
    },
    text="Write the heart of the attention kernel: take more keys into a softmax that has begun already. The kernel "
    "around it finds the pages, and calls yours for every block of keys.",
    why={
        "take_in": (
            "Rescaling what is already summed replaces a second pass over the scores, so the kernel never holds "
            "more than one block of keys. The base of 0 for rows that have seen nothing avoids the one case in "
            "which -inf would meet -inf."
        ),
    },
    alone="tests/kernels/interpreted_p09.py",
    triton=True,
    interpreted=True,
    run=True,
)

SPLITS = Exercise(
    file="phases/p09_triton_attention/splits.py",
    functions={
        "keys_of_part": (
            "The kernel reads KEYS at a time, so what costs a program time is a block, full or not. How many blocks "
            "are there, and how would you deal them out so that no program has two more than another?",
            "Number the blocks, and let part p begin where the share of all parts before it ends: at block p * blocks "
            "// PARTS. It ends where part p + 1 begins, so no key is left out and none is read twice. The last block "
            "may be cut short by `length`. (An even share rounded up, times p, works too; see to it that parts behind "
            "the end are empty.)",
            "blocks = tl.cdiv(length, KEYS) · start = part * blocks // PARTS * KEYS · stop = (part + 1) * blocks // "
            "PARTS * KEYS · return start, tl.minimum(stop, length).",
        ),
        "merge_parts": (
            "Each part subtracted its own peak before it took exponentials, so sums of two parts are on two scales. "
            "Which scale do you bring them to? And which peak has a part that had no keys?",
            "Take the greatest peak of all parts. A part's sums are too large by exp(that - its own peak): multiply "
            "both by exp(its own peak - that). Then add up the totals, add up the weighted values, and divide. If no "
            "part has a key, every peak is -inf and every total 0: subtract 0, and divide by 1.",
            "highest = tl.max(peak, 0) · shrink = tl.exp(peak - tl.where(highest == float('-inf'), 0.0, highest)) · "
            "total = tl.sum(total * shrink, 0) · return tl.sum(seen * shrink[:, None], 0) / tl.where(total == 0.0, "
            "1.0, total).",
        ),
    },
    text="Let several programs share one long sequence. You decide who reads which keys, and put together what they "
    "leave. Any division will do that reads each key once and keeps no program longer than an even share would.",
    why={
        "keys_of_part": (
            "Dealing out whole blocks by `p * blocks // PARTS` needs no case for what is left over: shares differ by "
            "one block at most. Everything comes from `length`, which is on the GPU, so the launch need not know it."
        ),
        "merge_parts": (
            "This is `take_in` again, with parts for blocks: bring all sums to the greatest peak, add, and divide "
            "once. It always adds in the same order, whichever program ends first, so a step gives the same bits."
        ),
    },
    alone="tests/kernels/interpreted_splits.py",
    triton=True,
    interpreted=True,
    run=True,
)

CHUNKS = Exercise(
    file="phases/p09_triton_attention/chunks.py",
    functions={
        "pairs": (
            "The token at position p sees p + 1 keys. How many do the first and the last token of the chunk see?",
            "Each of the tokens sees the `start` keys before the chunk: count times start. Within the chunk the first "
            "sees one key, itself, the next sees two, and so on up to `count`.",
            "return count * start + count * (count + 1) // 2",
        ),
        "flops": (
            "A multiplication and an addition are two FLOPs. How many products does a pair take part in?",
            "Each token is multiplied by all weights: 2 FLOPs for each. Each pair takes one product with a key and one "
            "with a value, as long as a head is, in all heads and layers: 4 FLOPs for each number of `width`.",
            "return 2 * sizes.weights * count + 4 * sizes.width * pairs(start, count)",
        ),
        "even": (
            "How many FLOPs of each kind does one token at position p take? (Not the whole prompt up to it.)",
            "Its weights take 2 · weights FLOPs, its p keys 4 · width · p. For which p are these equal?",
            "Solve 2 · weights = 4 · width · p for p: return sizes.weights / (2 * sizes.width)",
        ),
        "most_tokens": (
            "Write the cost of c tokens from `start` on as a polynomial in c. What is its degree, and where does it "
            "meet the limit?",
            "square · c² + linear · c, with square = 2 · width and linear = 2 · weights + 4 · width · start + square. "
            "It meets the limit at c = (√(linear² + 4 · square · limit) - linear) / (2 · square). Round down, but "
            "never to 0. Large numbers have more digits than a float: math.isqrt rounds a root down exactly.",
            "square = 2 * sizes.width; linear = 2 * sizes.weights + 4 * sizes.width * start + square · return max(1, "
            "(isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square))",
        ),
        "cut": (
            "Where does the next chunk start, and how long may it be from there on? What about the last one?",
            "While `start` is before `end`: add a chunk as long as `most_tokens` says, but not beyond `end`. Then move "
            "`start` to the chunk's end. Chunks get shorter, since each starts at a later position.",
            "chunks = [] · while start < end: count = min(most_tokens(sizes, start, limit), end - start); "
            "chunks.append((start, count)); start += count · return chunks",
        ),
    },
    text="Count what a chunk of a long prompt costs, and cut a prompt so that no step costs more than a limit. "
    "Exactly: the next token would be too much.",
    why={
        "pairs": (
            "A rectangle and a triangle: all tokens see the keys before the chunk, and within it each sees one more "
            "than the last. Chunks of a prompt therefore have as many pairs together as the whole prompt."
        ),
        "flops": (
            "The two kinds of work stay apart, because a machine does them at different rates. Both are counted in "
            "integers, so a limit can be met exactly."
        ),
        "even": (
            "One number says which prompts are long for a model: far below it attention hardly matters, far beyond it "
            "little else does. It grows with the width of the layers, since weights grow with the width's square."
        ),
        "most_tokens": (
            "The cost is a parabola in the chunk's length, so the longest chunk is a root of it, and no search is "
            "needed. The integer root rounds down, as does the division after it, so the result is exact."
        ),
        "cut": ("Only the start moves. Neither the last chunk nor a prefix from the cache needs a case of its own."),
    },
    alone="tests/phases/test_promises_chunks.py",
)

EXERCISES = (NORM, SOFTMAX, SPLITS, CHUNKS)
