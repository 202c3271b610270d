"""The student writes add and norm in one pass, then the online softmax. No GPU is needed: Triton interprets."""

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
    tests=("tests/kernels/interpreted_p09.py",),
    triton=True,
    interpreted=True,
)

EXERCISES = (NORM, SOFTMAX)
