"""One of two ranks on the GPU's kernels, which Triton interprets, for test_fused_ranks.py. Prints its tokens as JSON.

    TRITON_INTERPRET=1 python -m tests.parallel.fused_rank RANK MEETING_FILE SHAPE

Inboxes are files that both processes map: the GPUs' memory as ranks see it. RANK -1 is the whole model, in one process.
"""

import json
import mmap
import os
import sys
from pathlib import Path

import torch

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache.paged import PagedCache
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.kernels.fuse.model import fused
from gradus.kernels.rows.summed_norm import Inboxes
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from gradus.parallel.exchange import Exchange
from gradus.parallel.fused import fused_part
from gradus.parallel.group import Group
from gradus.parallel.model import load_part
from gradus.parallel.place import Place
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from gradus.speculative.history import History
from tests.execution.runners import on_kernels
from tests.kernels.interpreted_speculation import Known
from tests.phases.drive import run

CPU, RANKS, ROWS, SLOTS, DRAFTS = torch.device("cpu"), 2, 16, 2, 3
PROMPTS = [(7 * i) % 300 for i in range(ROWS + 2)], [5], [3, 4, 9]


def main(rank: int, path: str, shape: str) -> None:
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(f"random:{shape}")
    if rank < 0:
        model = load_model(checkpoint, dtype=torch.float32, device=CPU)
        view = fused(model)
    else:
        part = load_part(checkpoint, Place(rank, RANKS), path, torch.float32, CPU)
        model = part.model
        view = fused_part(model, Exchange(part.stage, inboxes(part.stage, model.config.hidden_size)))
    print(json.dumps(tokens(model, view)), flush=True)
    os._exit(0)


def inboxes(group: Group, width: int) -> Inboxes:
    size = 2 * RANKS * ROWS * width
    files = [Path(f"{group.path}-inbox-{rank}") for rank in range(RANKS)]
    files[group.rank].write_bytes(bytes(8 * size))
    group.gather(torch.zeros(1))  # all are there
    shared = []
    for file in files:
        with file.open("r+b") as opened:
            shared.append(torch.frombuffer(mmap.mmap(opened.fileno(), 8 * size), dtype=torch.int64))
    return Inboxes(
        group.rank,
        shared[group.rank].view(2, RANKS, ROWS, width),
        torch.tensor([each.data_ptr() for each in shared]),
        torch.zeros(ROWS, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        shared,
    )


def tokens(model: Model, view: Model) -> list[tuple[int, ...]]:
    """Answers with and without drafts, which are alike."""
    found = answers(model, view)
    said = [(*prompt, *answer) for prompt, answer in zip(PROMPTS, found, strict=True)]
    assert answers(model, view, Known(said)) == found
    return found


def answers(model: Model, view: Model, drafter: Known | None = None) -> list[tuple[int, ...]]:
    """Answers to a prompt of more rows than an inbox has, and to two short ones, one greedy and one sampled."""
    config, limits = model.config, ModelLimits(model.config.vocab_size, 64)
    storage = PagedStorage(config, 32, 16, model.dtype, model.device)
    attention = GraphPagedAttention(config, storage, slots=SLOTS + 1)
    sampler, history = KernelSampler(config.vocab_size, CPU, SLOTS), History(SLOTS, 64, CPU, whole=drafter is not None)
    runner = on_kernels(view, attention, sampler, history, drafter, drafts=DRAFTS)
    control = None if drafter is None else DraftControl(DraftShapes(DRAFTS, SLOTS), SLOTS, lag=1, adaptive=False)
    cache = PagedCache(32, 16, [group.window for group in storage.groups])
    engine = Engine(Scheduler(cache, SLOTS, 40, drafting=control), runner, limits, 1)
    ways = [SamplingParams(max_tokens=5, ignore_eos=True, temperature=heat, seed=3) for heat in (0.0, 0.0, 0.9)]
    asked = [Request.create(f"{i}", *each, limits) for i, each in enumerate(zip(PROMPTS, ways, strict=True))]
    said = run(engine, asked)
    assert drafter is None or sum(engine.scheduler.drafting.stats().accepted)
    return [said[request.id, 0].tokens for request in asked]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
