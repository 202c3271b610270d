"""Run by test_summed_norm.py in a process of its own, where Triton interprets: a part on the kernels, of one rank.

A single rank's part is the whole model, and it waits for nobody; its twins and kernels are those of several.
"""

import pytest
import torch
from torch import Tensor

from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from gradus.parallel.exchange import Exchange
from gradus.parallel.fused import FusedSummed, fused_part
from gradus.parallel.model import load_part
from gradus.parallel.place import Place
from tests.kernels.interpreted_fused_model import OneSequence
from tests.kernels.interpreted_summed_norm import CAPACITY, ROWS, ranks

CPU, DTYPE = torch.device("cpu"), torch.float32


def logits(model: Model, count: int) -> Tensor:
    ids = torch.arange(count) * 37 % model.config.vocab_size
    return model.logits(model(ids, torch.arange(count), OneSequence(model)))


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ("tiny-llama", 2),
        pytest.param("tiny-gpt2", 0, marks=pytest.mark.stress),
        ("tiny-gemma3", 0),
        ("tiny-gemma4-e", 0),
    ],
)
@torch.inference_mode()
def test_it_is_the_model_with_few_rows_and_with_many(shape, left, tmp_path):
    """left: how many of a layer's products leave their summands to the next norm. LayerNorms take none, nor do norms
    of a layer's own result."""
    checkpoint = open_checkpoint(f"random:{shape}")
    model = load_model(checkpoint, dtype=DTYPE, device=CPU)
    part = load_part(checkpoint, Place(0), str(tmp_path / "meet"), DTYPE, CPU)
    (inboxes,) = ranks(1, capacity=max(CAPACITY, model.config.hidden_size))
    view = fused_part(part.model, Exchange(part.stage, inboxes))
    products = [each for each in view.modules() if isinstance(each, FusedSummed)]
    assert len(products) == 2 * len(model.layers)
    assert sum(each.summands is not None for each in products) == left * len(model.layers)
    for count in (ROWS, ROWS + 1):
        before = inboxes.epochs.clone()
        torch.testing.assert_close(logits(view, count), logits(model, count), atol=2e-5, rtol=1e-4)
        sums = inboxes.epochs - before
        assert sums.tolist() == [len(products) + 1 if count <= ROWS else 0] * ROWS, "one more for the embedding"
