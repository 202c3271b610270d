"""A decode step on a processor, in numba: five stages per layer, each shared by all threads. Read in this order:

    decode_step.py     the stages, in their order, and the loop that every thread runs
    normalize.py, product.py, attend.py, elementary.py     what a stage consists of, each beside its torch reference
    greedy.py          the choice of tokens while logits are made
    team.py            how threads share a stage, and why none waits for one that does not run
    matrix.py, model.py     a model's weights as the kernels see them, and a model as stages; products beside its step
    vectors.py, machine.py  what numba lacks: two loops in LLVM's own words, bfloat16, words that threads share
    rows.py            up to how many rows all this is faster than torch, as measured
    panel.py           int4 weights made wide, for the prompts that torch multiplies
    kept.py            compiled code on disk

There is no `prange` in here, nor any other region that numba makes parallel: it would fuse two of them that follow each
other, and compute something else.
"""

from importlib import import_module
from importlib.util import find_spec


def missing() -> str | None:
    """Why the kernels cannot run, in a phrase; None if they can."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'gradus-llm[cpu]')"
    try:
        import_module("numba")
    except Exception as error:  # it refuses versions of numpy and of its own parts in several ways
        return f"numba cannot be loaded: {' '.join(str(error).split()) or type(error).__name__}"
    return None
