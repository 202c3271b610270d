"""One of two ranks on GPUs, for test_tensor_parallel.py: runs its part on the kernels, and saves what it computed.

python -m tests.gpu.rank_program RANK MEETING_FILE RESULTS.npz
"""

import os
import sys
import time
from typing import Any

import numpy as np
import torch

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.storage import PagedStorage
from gradus.execution.gpu.warm_up import padding_batch
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.rows.reference import summed_rms_norm_reference
from gradus.kernels.rows.summed_norm import summed_rms_norm
from gradus.loading import open_checkpoint
from gradus.parallel.exchange import Exchange
from gradus.parallel.fused import fused_part
from gradus.parallel.group import Group
from gradus.parallel.model import load_part
from gradus.parallel.place import Place
from gradus.parallel.symmetric import MOST_ROWS, inboxes_of

WIDTH, EPS = 4096, 1e-5
ROWS = (1, 8, 64, 256)
PROMPTS = (1, 40, MOST_ROWS + 100)  # rows through inboxes, and through NCCL


@torch.inference_mode()
def main(rank: int, path: str, out: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    saved = exchanged(Group(f"{path}-exchange", rank, 2, device)) | activations(rank, f"{path}-model", device)
    arrays: dict[str, Any] = {name: value.float().cpu().numpy() for name, value in saved.items()}
    np.savez(out, **arrays)
    sys.stdout.flush()
    os._exit(0)


def exchanged(group: Group) -> dict[str, torch.Tensor]:
    """The kernel's results, and torch's, of rows that both ranks draw alike; launched, and in a graph."""
    inboxes, rank, device = inboxes_of(group, WIDTH, torch.bfloat16), group.rank, group.device
    assert inboxes is not None, "the GPUs do not reach each other's memory"
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    weight, saved = drawn(WIDTH), {}
    for rows in ROWS:
        for early in (False, True):
            parts, stream = drawn(2, rows, WIDTH), drawn(rows, WIDTH)
            expected = stream.clone()
            saved[f"wanted {rows} {early}"] = summed_rms_norm_reference(parts, expected, weight, EPS)
            saved[f"wanted stream {rows} {early}"] = expected
            kept = stream.clone()
            with early_launches(early):
                saved[f"found {rows} {early}"] = summed_rms_norm(parts[rank], inboxes, kept, weight, EPS)
            saved[f"found stream {rows} {early}"] = kept
            again, graph = stream.clone(), torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"), early_launches(early):
                for _ in range(3):
                    result = summed_rms_norm(parts[rank], inboxes, again, weight, EPS)
            for _ in range(2):
                again.copy_(stream)
                graph.replay()
            wanted, expected = stream, stream.clone()
            for _ in range(3):
                wanted = summed_rms_norm_reference(parts, expected, weight, EPS)
            saved[f"wanted replayed {rows} {early}"] = wanted
            saved[f"found replayed {rows} {early}"] = result.clone()
    torch.cuda.synchronize()  # see `Group`
    return saved


def activations(rank: int, path: str, device: torch.device) -> dict[str, torch.Tensor]:
    """Logits of a part in bfloat16, for a few numbers of rows."""
    part = load_part(open_checkpoint("random:tiny-llama"), Place(rank, 2, 1), path, torch.bfloat16, device)
    model = part.model
    exchange = Exchange(part.stage, inboxes_of(part.stage, model.config.hidden_size, model.dtype))
    view, storage = fused_part(model, exchange), PagedStorage(model.config, 64, 16, model.dtype, device)
    attention, saved = GraphPagedAttention(model.config, storage, slots=2), {}
    for rows in PROMPTS:
        batch = padding_batch([rows], attention.padding, device)
        ids = torch.arange(rows, device=device) * 37 % model.config.vocab_size
        attention.prepare(batch)
        if rank == 1 and rows > MOST_ROWS:
            time.sleep(1)  # the other rank has launched everything by then
        hidden = view(ids, batch.positions, attention)
        saved[f"hidden {rows}"], saved[f"logits {rows}"] = hidden.clone(), view.logits(hidden)
    torch.cuda.synchronize()  # see `Group`
    return saved


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
