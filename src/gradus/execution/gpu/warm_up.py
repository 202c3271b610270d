"""Runs dummy steps before the first request.

Triton compiles a kernel at its first launch of each kind, and cuBLAS loads its own kernels: together many seconds,
which the first requests would wait for. The kind of a launch depends on the number of tokens in a span and the number
of spans, both by powers of two, so a few steps cover all kinds. Only Hopper's kernel for long prompts has lengths of
its own (`HopperLaunch.fills`). The steps run twice: first only to compile all kernels in parallel
(`gradus.kernels.core.compiling`), then for real.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.cache import TableChange
from gradus.engine.plan import Plan, Span
from gradus.execution.layout import lay_out
from gradus.execution.passes import RunModel
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler


@torch.inference_mode()
def warm_up(
    model: Model,
    run_model: RunModel,
    attention: GraphPagedAttention,
    sampler: KernelSampler,
    *,
    most: int,
    crowd: int,
    written: Tensor | None = None,
) -> None:
    """Run a prompt of each kind of length up to `most` tokens, and batches of up to `crowd` short ones.

    All are in padding's slot. run_model: runs the model, faster for sizes that it has captured. written: where draws
    also write each slot's token, as in `KernelSampler.draw_slots`.
    """
    padding = attention.padding
    attention.update_tables([(padding, TableChange(0, ((0,),) * len(attention.tables)))])
    tallest = max(tiles.launches[-1].rows for tiles in attention.tiles)
    if any(model.config.experts):  # which launches they take depends on rows per expert, up to the longest prompt
        tallest = most
    long = [[length] for length in sorted(attention.shortest_on_hopper(most))]
    for counts in [*steps(tallest, most, crowd), *long]:
        batch = padding_batch(counts, padding, model.device)
        attention.prepare(batch)
        hidden = run_model(batch.token_ids, batch.positions, attention)
        slots = torch.full((len(counts),), padding, device=model.device)
        logits = model.logits(hidden[batch.logits_rows])
        for full in (False, True):
            sampler.draw_slots(logits, slots, slots, written, full=full)
    torch.cuda.synchronize(model.device)


def steps(largest: int, most: int, crowd: int) -> Iterator[list[int]]:
    """Yield each step's number of new tokens per span.

    largest: up to here each power of two is a kind of its own. No tile has more tokens than rows.
    """
    lengths = {1 << power for power in range(1, largest.bit_length())} | {2 * largest, most}
    yield from ([length] for length in sorted(lengths) if length <= most)
    for spans in crowds(crowd):
        yield [2] * spans


def crowds(crowd: int) -> set[int]:
    """List the numbers of spans, up to `crowd`, that together cover every kind of launch."""
    return {1 << power for power in range(1, crowd.bit_length())} | {crowd}


def padding_batch(counts: list[int], slot: int, device: torch.device) -> Batch:
    """Build a batch of prompts with `counts` tokens each, all in one slot."""
    return lay_out(Plan([Span(None, slot, 0, [0] * count, 1) for count in counts]), device)
