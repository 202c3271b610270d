"""Kernels in Triton: one file per operation, each with its idea, its shapes, the bytes it moves, and a torch reference.

They are imported only by the parts that launch them: without a GPU, Triton need not be installed. Read in this order:

    norm.py, activation.py                one pass over rows
    overlap.py                            launches that start while the ones before them drain
    gemv.py, splits.py, skinny.py         products of few rows;  few_rows_launch.py, few_rows.py: of 2 to 16, in Gluon
    streamed_launch.py, streamed_gemv.py  one row, all of whose weights are on their way before it is there, in Gluon
    streamed_rows.py                      2 to 16 rows on such a stream
    linear.py                             which one, by launch_tables.py (measured/)
    tile.py, int4.py, quantize.py, eight_bits.py   products of quantized matrices, whose tiles tile_tables.py chooses
    hopper_launch.py, hopper_product.py   the same for prompts in int8 on Hopper, in Gluon
    rope_store.py, new_token.py           rotation, and the new keys and values on their pages;  e4m3.py: in 8 bits
    online_softmax.py, paged_attention.py, paged_attention_reference.py
    hopper_attention.py                   the same for long prompts on Hopper, in Gluon
    attention_work.py, split_attention.py, attention_launch.py   how a step's attention is divided
    noise.py, exponential_noise.py, sampling.py    the draw;  decode_inputs.py: how a step of decodes begins
    draft_rows.py                         how a step that verifies drafts begins and ends
    prompt_history.py                     what a step with prompts leaves for drafts
    ngram.py, ngram_reference.py, draft_inputs.py   how drafts begin: those from the text, and those of heads
    draft_passes.py                       how each pass of a draft model begins
    seen_words.py, slot_settings.py, narrowing.py, likeliest.py, asked_sampling.py   the draw of rows that ask for more
    view.py, fuse.py, fuse_quantized.py   the kernels under a model
    compiling.py, compilers.py            all compiled side by side

    cpu/                                  a processor's kernels, in numba
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from gradus.errors import ConfigError

if TYPE_CHECKING:
    import torch


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


def check_kv_dtype(kv_dtype: str, device: "torch.device", kernels: bool) -> None:
    """Raises ConfigError where the kernels, if they are to run, could not read what a cache of this type holds."""
    if kv_dtype != "fp8" or not kernels or missing(str(device)):
        return
    from gradus.device.capability import capability

    if not (able := capability(device)).multiplies_fp8:
        raise ConfigError(
            f"kv_dtype fp8 needs a GPU of compute capability 8.9 or later, {device} has {able}: leave it out, or run "
            "without kernels and graphs (switch_off)"
        )
