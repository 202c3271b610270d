"""The student writes a kernel: a sum and a norm in one pass over the row. No GPU is needed, Triton interprets it."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="src/gradus/kernels/norm.py",
    functions={
        "_moments": (
            "A block has a power of two of lanes, a row has D values: what do the lanes beyond the row hold, and which "
            "sum would they spoil? In an RMSNorm nothing has to be done about them, in a LayerNorm something has.",
            "If CENTER, take the mean (the sum over all lanes, divided by D) away from x, and put the lanes beyond the "
            "row back to 0, for they were 0 and are now minus the mean. Return that, and one over the root of the mean "
            "square plus eps. CENTER is a constexpr, so the `if` costs nothing when it runs.",
            "if CENTER: x = tl.where(inside, x - tl.sum(x, 0) / D, 0.0) · return x, tl.rsqrt(tl.sum(x * x, 0) / D + "
            "eps).",
        ),
        "norm_kernel": (
            "A program has one row: which elements are its own, by `tl.program_id(0)`, D, and a lane's number? Every "
            "load needs a mask. The sum is written, then normalized: where does it stay, so that it is not read again?",
            "Load x. If there is a delta, widen both to float32, normalize delta first if it has a weight of its own, "
            "add, round to x's type, and store: later layers read that. Then if there is a weight: the moments of the "
            "rounded sum, scale, weight, bias if there is one, and store y. Pointers that are None are known when the "
            "kernel is compiled: `if delta_ptr is not None`.",
            "column = tl.arange(0, BLOCK); inside = column < D; here = tl.program_id(0).to(tl.int64) * D + column · "
            "let_next_start(PDL), load what is nobody's output (weight), wait_for_previous(PDL), then x = "
            "tl.load(x_ptr + here, mask=inside, other=0.0) · delta likewise, .to(tl.float32); with delta_weight_ptr: "
            "delta, scale = _moments(delta, inside, D, False, eps); delta *= scale * its weight · x = "
            "(x.to(tl.float32) + delta).to(x_ptr.dtype.element_ty); tl.store(x_ptr + here, x, mask=inside) · "
            "centered, scale = _moments(x.to(tl.float32), inside, D, CENTER, eps); y = centered * scale * weight, plus "
            "the bias; tl.store(y_ptr + here, y.to(y_ptr.dtype.element_ty), mask=inside).",
        ),
    },
    text="Write a kernel: x += delta and y = norm(x), with every row read once. RMSNorm and LayerNorm are the same but "
    "for the mean. It is judged in Triton's interpreter, which runs a program after the other on the CPU and lets you "
    "print what a lane holds.",
    tests=("tests/kernels/interpreted_norm.py",),
    interpreted=True,
)
