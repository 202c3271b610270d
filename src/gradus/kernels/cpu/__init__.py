"""A decode step on a processor, in numba: a few stages per layer, each shared by all threads. Read in this order:

    decode_step.py     the stages, in their order, and the loop that every thread runs
    product.py, elementary.py     the parts of a stage; each names its torch reference
    attention/         the stage that reads pages, for a decode's rows and for a prompt's
    experts/           the stages of a layer with a mixture of experts
    outer.py           products of many rows, and other work on rows side by side
    activations.py     rows of activations, prepared for each kind of matrix
    greedy.py          the greedy choice of tokens while logits are computed
    team.py            how threads share a stage, and why none waits for a thread that does not run
    matrix.py, model.py     a model's weights as the kernels see them; a model as stages, and products outside its step
    vectors.py, machine.py  features that numba lacks: loops in LLVM code, bfloat16, words that threads share
    byte_products.py   int8 by int8, by the instruction of each processor
    rows.py            the number of rows up to which all this is faster than torch, as measured
    int4/              products of matrices in 4 bits
    gguf/              products of matrices in the blocks of a GGUF file
    experts/           the stages of a mixture of experts, and the experts of a prompt
    kept/              compiled code on disk, and who compiles it

There is no `prange` in here, nor any other region that numba parallelizes: numba would fuse two consecutive ones, and
compute something else.
"""

from importlib import import_module
from importlib.util import find_spec


def missing() -> str | None:
    """Say in a phrase why the kernels cannot run; None if they can."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install numba)"
    try:
        import_module("numba")
    except Exception as error:  # numba refuses versions of numpy and of its own parts in several ways
        return f"numba cannot be loaded: {' '.join(str(error).split()) or type(error).__name__}"
    return None
