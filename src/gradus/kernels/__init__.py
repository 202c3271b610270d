"""Triton kernels: one file an operation, each with its idea, its shapes, the bytes it moves, and a torch reference.

They are imported by the parts that launch them and by nothing else: without a GPU nobody needs Triton.
"""

from importlib.util import find_spec


def missing(device: str) -> str | None:
    """Why the kernels cannot run on a kind of device ("cuda", "cpu"); None if they can."""
    if device != "cuda":
        return f"the model is on the {device}, and Triton's kernels need a CUDA GPU"
    return "Triton is not installed (it comes with torch's CUDA build)" if find_spec("triton") is None else None
