"""The student writes a grid for a group of weights, packing, AWQ's search for factors, and one column of GPTQ."""

from gradus.exercises import Exercise

ROUNDING = Exercise(
    file="phases/p07_quantization/rounding.py",
    functions={
        "grid": (
            "Four bits number 16 grid points. Where must the first and the last lie, so that no weight of the group is "
            "beyond them, and how many steps are there between 16 points?",
            "The offset is the group's smallest weight, and its largest is 2^bits - 1 steps above. Minima and maxima "
            "are taken over the last dimension alone: each group has its own. A scale of 0 would be divided by later, "
            "so it is TINY at least.",
            "offset = weights.amin(dim=-1); scale = (weights.amax(dim=-1) - offset) / (2**bits - 1); return "
            "scale.clamp(min=TINY), offset",
        ),
        "nearest": (
            "Grid point q is q * scale + offset. Solve for q, which is not whole then. What makes it the nearest?",
            "Subtract the offset, divide by the scale, and round. GPTQ changes weights after their grid was chosen, so "
            "some lie beyond it: there is no grid point below 0 or above 2^bits - 1.",
            "return ((weights - offset) / scale).round().clamp(0, 2**bits - 1)",
        ),
        "dequantize_groups": (
            "codes has K columns, scale and offset have G. Which shape lets each group meet its own scale?",
            "Codes are integers: make them the scale's type, and cut each row into G groups, [N, G, K / G]. Scale and "
            "offset need a last dimension of 1. Afterwards the groups are a row again.",
            "groups = codes.to(scale.dtype).unflatten(1, (scale.shape[1], -1)); return (groups * scale[..., None] + "
            "offset[..., None]).flatten(1)",
        ),
    },
    text="Give a group of weights a grid of its own, find each weight's number on it, and go back from numbers to "
    "weights. No weight may be off by more than half a step.",
    why={
        "grid": (
            "The grid is asymmetric: it spans exactly from the smallest weight to the largest, and no code is "
            "wasted. TINY is for a group of equal weights, whose range is zero."
        ),
        "nearest": (
            "Rounding after the division finds the nearest grid point in one expression. The clamp matters for GPTQ "
            "alone, which moves weights after their grid has been fixed."
        ),
        "dequantize_groups": (
            "`unflatten` cuts rows into groups without copying, and broadcasting brings each group its own scale. "
            "The type of the scale decides the type of the result, so the same code serves float32 and bfloat16."
        ),
    },
)

PACKING = Exercise(
    file="phases/p07_quantization/packing.py",
    functions={
        "pack": (
            "Two neighbors share a byte. Which columns go into low halves, and which into high ones?",
            "Every second column from 0 on stays where it is. Those from 1 on move four bits up, and `|` puts both "
            "into one byte: the low half of a shifted code is empty.",
            "return codes[:, 0::2] | (codes[:, 1::2] << 4)",
        ),
        "unpack": (
            "A mask keeps the low half, a shift brings down the high one. In which order do the two stand in the "
            "result?",
            "packed & 15 is column 0, 2, 4 and so on; packed >> 4 is column 1, 3, 5. They take turns, so stack them "
            "along a new last dimension and flatten that away.",
            "return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)",
        ),
    },
    text="Put two codes of four bits into each byte, and take them out again. The layout is a promise: other programs "
    "read such files, and kernels are written for it.",
    why={
        "pack": (
            "Strided slices take every second column at once. The order, even columns in the low halves, is what "
            "common formats use: a kernel can then widen a byte into two neighbors."
        ),
        "unpack": (
            "Stacking along a new last dimension interleaves the two halves when it is flattened. Mask and shift "
            "read each byte once."
        ),
    },
)

AWQ = Exercise(
    file="phases/p07_quantization/awq.py",
    functions={
        "rounded": (
            "What is rounded is w * factors. But the matrix that is returned meets the inputs as they are.",
            "Each column is multiplied by its factor, all is quantized in groups and dequantized, and each column is "
            "divided by its factor again. Without rounding that would be w.",
            "return dequantize_groups(*quantize_groups(w * factors, group, bits)) / factors",
        ),
        "factors_at": (
            "Large inputs ask for a large factor, columns that are large already for a small one. `ratio` says how "
            "much each has to say; for ratio 1 it is the inputs alone.",
            "x_size to the power of ratio, divided by w_size to the power of 1 - ratio. Add SMALLEST to what is "
            "divided by, and let no factor be smaller than SMALLEST: a channel may have been silent. Then balance: "
            "divide by the root of the largest times the smallest.",
            "factors = (x_size**ratio / (w_size ** (1 - ratio) + SMALLEST)).clamp(min=SMALLEST); return factors / "
            "(factors.max() * factors.min()).sqrt()",
        ),
        "search": (
            "Which error should be least: that of the weights, or that of what the layer gives for the inputs it has "
            "seen? And what if no proposal is better than plain rounding?",
            "Begin with factors of 1 and their `output_error`. Then for each of RATIOS: factors from the mean "
            "absolute input of each channel and `size_in_group`, the matrix `rounded` with them, its `output_error`. "
            "Keep the factors with the least.",
            "x_size, w_size = x.abs().mean(dim=0), size_in_group(w, group) · best = torch.ones_like(x_size); least = "
            "output_error(x, w, rounded(w, best, group, bits)) · for ratio in RATIOS: factors = factors_at(ratio, "
            "x_size, w_size); error = output_error(x, w, rounded(w, factors, group, bits)); if error < least: best, "
            "least = factors, error · return best",
        ),
    },
    text="Find factors for the input channels of a layer, so that rounding hurts its output least. The formula "
    "proposes, real inputs decide.",
    why={
        "rounded": (
            "Dividing by the factors again makes the function comparable: its result meets the inputs as they are. "
            "In an engine that division is folded into the layer before, and costs nothing."
        ),
        "factors_at": (
            "One exponent moves between two extremes: the inputs alone, or the weights alone. The balance at the "
            "end keeps the factors around one, so the common scale of a group is not shifted for nothing."
        ),
        "search": (
            "The measure is the layer's output on real inputs, never the weights' own error: large inputs make some "
            "weights matter more. Plain rounding is the first candidate, so the result cannot be worse than that."
        ),
    },
    alone="tests/phases/test_promises_quantization.py",
)

GPTQ = Exercise(
    file="phases/p07_quantization/gptq.py",
    functions={
        "column_step": (
            "The column has one weight for each row of w, and each row has its own grid. After rounding, which columns "
            "may still change?",
            "`nearest` gives the codes, and the error is the weight minus its grid point. Divide it by u's diagonal "
            "entry, and subtract it from each later column, times that column's entry in u's row. Columns up to this "
            "one stay: they are rounded already.",
            "codes = nearest(w[:, column], scale, offset, bits) · error = w[:, column] - (codes * scale + offset) · "
            "w[:, column + 1 :] -= (error / u[column, column])[:, None] * u[column, column + 1 :] · return codes",
        ),
    },
    text="Round one column of a matrix, and hand its error on to the columns that are not rounded yet, so that the "
    "layer's output changes as little as it can.",
    why={
        "column_step": (
            "The error is divided by the diagonal and spread along the row of u, which holds how columns make up "
            "for one another. Columns to the left are final, so only later ones change, in place."
        ),
    },
    alone="tests/phases/test_promises_quantization.py",
)

EXERCISES = (ROUNDING, PACKING, AWQ, GPTQ)
