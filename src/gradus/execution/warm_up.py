"""Prompts of nobody, run before the first real one.

Triton compiles a kernel when it first meets a shape of launch, and cuBLAS loads its own: together a second or more,
which somebody's first token would wait for. Which launches there are depends on how many tokens a span has, and that by
powers of two up to the largest tile, so a few prompts meet them all.
"""

import torch

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler


@torch.inference_mode()
def warm_up(model: Model, attention: GraphPagedAttention, sampler: KernelSampler, *, nobody: int, most: int) -> None:
    """Run a prompt of each kind of length up to `most` tokens in the slot `nobody`, whose pages are page 0."""
    device, largest = model.device, attention.launches[-1].rows  # no tile has more tokens than rows
    lengths = {1 << power for power in range(1, largest.bit_length())} | {2 * largest, most}
    for count in sorted(length for length in lengths if length <= most):
        batch = Batch(
            token_ids=torch.zeros(count, dtype=torch.int64, device=device),
            positions=torch.arange(count, device=device),
            slots=[nobody],
            query_start=[0],
            counts=[count],
            starts=[0],
            lengths=[count],
            tables=[None],
            logits_rows=torch.tensor([count - 1], device=device),
            row_spans=[0],
        )
        attention.prepare(batch)
        hidden = model(batch.token_ids, batch.positions, attention)
        slots = torch.tensor([nobody], device=device)
        sampler.draw_slots(model.logits(hidden[batch.logits_rows]), slots, slots)
    torch.cuda.synchronize(device)
