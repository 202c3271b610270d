"""The student writes grids, packing, a product of codes, AWQ's search, a column of GPTQ, floats, and a cache."""

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

FUSED = Exercise(
    file="phases/p07_quantization/fused.py",
    functions={
        "split": (
            "A byte holds the codes of columns 2i and 2i + 1. In which order must x lie so that byte i finds its two "
            "values at place i of two arrays? And what is multiplied by a group's offset?",
            "Every second column from 0 on is one array, every second from 1 on the other. Copy both: a slice with a "
            "step is not contiguous, and the loop wants neighbors in memory. A group's offset meets the sum of its 64 "
            "values of x, so sums is [M, K / GROUP].",
            "sums = np.empty((len(x), x.shape[1] // GROUP), np.float32) · for each m and group: sums[m, group] = x[m, "
            "group * GROUP : (group + 1) * GROUP].sum() · return x[:, 0::2].copy(), x[:, 1::2].copy(), sums",
        ),
        "dot": (
            "Write out Σ w x for one group, with w = scale · code + offset. Which factors do not depend on the column? "
            "Take them out of the sum.",
            "One loop over groups, one over the BYTES bytes of a group, and in it only code · x, twice: the low half "
            "with the even column, the high half with the odd one. Cut codes, even and odd to the group first, so "
            "that the inner loop runs from 0 to BYTES: then the compiler makes vectors of it. numba widens integers "
            "to 64 bits: np.uint8 around a code keeps it a byte, and np.float32 makes it a float.",
            "total = np.float32(0) · for group in range(len(scale)): here = slice(group * BYTES, (group + 1) * BYTES); "
            "pairs, low, high = codes[here], even[here], odd[here]; part = np.float32(0); for i in range(BYTES): part "
            "+= np.float32(np.uint8(pairs[i] & 15)) * low[i] + np.float32(np.uint8(pairs[i] >> 4)) * high[i]; then "
            "total += to_float(scale[group]) * part + to_float(offset[group]) * sums[group] · return total",
        ),
    },
    text="Multiply a row of four-bit codes by x without ever writing a float weight. numba compiles your loop, and the "
    "check measures whether the compiler made vectors of it: a loop that takes one code at a time is right, and many "
    "times slower.",
    why={
        "split": (
            "Two contiguous copies of x cost K numbers once per product, and spare every row a shuffle. "
            "The sums are shared by all rows too: they depend on x alone."
        ),
        "dot": (
            "Scale and offset are factors of a group's sum, so the inner loop is a mask or a shift, a conversion and a "
            "multiply-add. BYTES is a constant and the slices begin at 0, so the compiler knows that no index is "
            "negative and that no byte remains, and takes 8 or 16 codes at a time."
        ),
    },
    alone="tests/phases/test_promises_quantized_product.py",
)

FORMATS = Exercise(
    file="phases/p07_quantization/formats.py",
    functions={
        "points": (
            "How many codes are there without the sign? Which bits of a code are its exponent, and which its mantissa?",
            "Codes run from 0 to 2^(exponent + mantissa) - 1; shift for the exponent, remainder for the mantissa, "
            "which counts in parts of 2^mantissa. Exponent 0 is special: no leading 1, and the power of exponent 1. "
            "What lies beyond form.largest is infinity or NaN, and no point.",
            "codes = torch.arange(2 ** (form.exponent + form.mantissa)); exponent, fraction = codes >> form.mantissa, "
            "(codes % 2**form.mantissa).double() / 2**form.mantissa · normal = (1 + fraction) * 2.0 ** (exponent - "
            "form.bias), subnormal = fraction * 2.0 ** (1 - form.bias) · values = torch.where(exponent > 0, normal, "
            "subnormal); return values[values <= form.largest]",
        ),
        "encode": (
            "The points ascend, and between two neighbors there is one place where the nearest changes. Which of the "
            "two is taken exactly there?",
            "Compute the halfway points. `torch.bucketize` counts how many of them are below |x|, and that is the "
            "code; a number beyond the largest point gets its code for free. At a tie it gives the lower code, so an "
            "odd one becomes one more. The sign is the bit in front of exponent and mantissa.",
            "values = points(form).to(x.dtype); halfway = (values[1:] + values[:-1]) / 2; below = "
            "torch.bucketize(x.abs(), halfway) · tie = x.abs() == halfway[below.clamp(max=len(halfway) - 1)]; codes = "
            "below + (tie & (below % 2 == 1)) · return (codes | (x.signbit().long() << (form.exponent + "
            "form.mantissa))).to(torch.uint8)",
        ),
        "power_of_two": (
            "The exponent of a number is log2, rounded down. What is that of the largest weight, and that of the "
            "form's largest point?",
            "The scale's exponent is the difference of the two. Zeros have no logarithm: TINY is the least.",
            "highest = torch.tensor(form.largest).log2().floor(); return "
            "torch.exp2(largest.clamp(min=TINY).log2().floor() - highest)",
        ),
        "two_scales": (
            "A block's scale must become an E4M3, which ends at 448. What must all of them be divided by first?",
            "The tensor's scale is its largest magnitude over 6 · 448. Then a block's is its own largest over 6 and "
            "over the tensor's, encoded and decoded as E4M3. Keep it from 0 with E4M3's smallest point, 2^-9, and "
            "the tensor's with TINY. What multiplies codes is the product.",
            "tensor = (largest.max() / (E2M1.largest * E4M3.largest)).clamp(min=TINY); blocks = decode(encode(largest "
            "/ E2M1.largest / tensor, E4M3), E4M3).to(largest.dtype); return blocks.clamp(min=2.0**-9) * tensor",
        ),
    },
    text="Write floats of any number of bits: which values they have, which code a number gets, and how "
    "MXFP4 and NVFP4 choose a block's scale. Torch's own FP8 types are the judge.",
    why={
        "points": (
            "One rule for normal numbers and one for exponent 0 give every value of every format. Only where the codes "
            "for infinity and NaN begin is a matter of agreement, hence `largest`."
        ),
        "encode": (
            "Rounding to the nearest of a sorted list is counting the halfway points below. Even codes at ties "
            "keep the rounding unbiased, and a weight beyond the largest point does not become infinity."
        ),
        "power_of_two": (
            "A power of two fits eight bits and multiplies without rounding. Its price: the largest weight falls "
            "anywhere between 4 and 8, so either the last point is cut off or the first bit is not used."
        ),
        "two_scales": (
            "An E4M3 is finer than a power of two, but reaches over only 18 of them. The tensor's float32 moves that "
            "window to where this tensor's blocks are."
        ),
    },
    alone="tests/phases/test_promises_quantized_formats.py",
)

KV = Exercise(
    file="phases/p07_quantization/kv.py",
    functions={
        "store": (
            "Which numbers share a scale, if a token's codes may depend on nothing that comes later?",
            "The largest magnitude of each vector of Dh numbers becomes 127. A vector of zeros is divided by TINY / "
            "127. The codes are int8, the scales float32.",
            "scale = x.float().abs().amax(dim=-1).clamp(min=TINY) / 127; return (x / scale[..., "
            "None]).round().to(torch.int8), scale",
        ),
        "scores": (
            "A score is q · (scale · codes), a sum over Dh. May the scale leave it?",
            "Multiply codes by q first, as q's type, and then each of the T sums by its key's scale.",
            "One line gives all T scores: return (codes.to(q.dtype) @ q) * scale",
        ),
        "mixed": (
            "Here the sum is over tokens, and each token has another scale. Which factor of a token can take it?",
            "Multiply each weight by its value's scale, and then the weights by the codes.",
            "One line gives the whole output: return (weights * scale) @ codes.to(weights.dtype)",
        ),
    },
    text="Store keys and values in eight bits, and attend to them without widening them: a key's scale goes to its "
    "score, a value's to its weight.",
    why={
        "store": (
            "A scale per vector is known as soon as the token is. A larger group would have to wait for tokens, or "
            "change what is stored already, and a shared page may not change."
        ),
        "scores": (
            "A key's scale is a factor of the whole sum over Dh. So it costs one multiplication per key, not Dh, and "
            "no wide key is ever written."
        ),
        "mixed": (
            "The sum over tokens mixes scales, so none can leave it. But each meets exactly one weight, and there it "
            "costs one multiplication per token as well."
        ),
    },
    alone="tests/phases/test_promises_quantized_formats.py",
)

EXERCISES = (ROUNDING, PACKING, FUSED, AWQ, GPTQ, FORMATS, KV)
