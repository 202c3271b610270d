"""Triton kernels: one file per operation, each with its idea, its shapes, the bytes it moves, and a torch reference.

They are imported only by the parts that launch them: without a GPU, Triton need not be installed. Read `norm.py` first,
then `gemv.py`, `skinny.py` and the files of attention (`paged_attention.py`, `attention_work.py`); `fuse.py` puts the
kernels under a model.
"""

from importlib.util import find_spec


def missing(device: str) -> str | None:
    """Why the kernels cannot run on a device ("cuda", "cuda:1", "cpu"), in a phrase; None if they can."""
    if not device.startswith("cuda"):
        return f"the model is on the {device}, and Triton's kernels need a CUDA GPU"
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with torch's CUDA build)"
    import torch  # here: this package is imported where torch is not

    from gradus.device.capability import OLDEST, capability

    if torch.cuda.is_available() and not (able := capability(torch.device(device))).runs_kernels:
        return f"the GPU has compute capability {able}, and Triton's kernels need {OLDEST} or newer"
    return None
