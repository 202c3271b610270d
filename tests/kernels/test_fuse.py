"""What `fused` does to a model before any kernel runs."""

import torch

from gradus.kernels.fuse import fused, widened
from gradus.models import create_model, randomize
from gradus.models.shapes import SHAPES


def test_a_head_with_an_odd_number_of_rows_gets_room_behind_it_and_stays_what_it_was():
    model = create_model(SHAPES["tiny-gpt2"], dtype=torch.float32, device="cpu")
    randomize(model, seed=0)
    head = model.head.weight
    head.data = head.data[:-3].clone()  # an odd number, as GPT-2's 50257
    before = head.detach().clone()
    wide = widened(head)
    assert len(wide) % 8 == 0 and len(wide) - 8 < len(head) < len(wide)
    assert torch.equal(head, before) and torch.equal(wide[: len(head)], before) and not wide[len(head) :].any()
    assert widened(head).data_ptr() == wide.data_ptr() == head.data_ptr()  # moved once


def test_the_embedding_that_shares_the_head_s_rows_goes_on_sharing_them():
    model = create_model(SHAPES["tiny-gpt2"], dtype=torch.float32, device="cpu")
    randomize(model, seed=0)
    assert model.embedding.weight is model.head.weight
    twin = fused(model)
    assert twin.embedding.weight.data_ptr() == twin.head.weight.data_ptr() == twin.head.wide.data_ptr()
    assert twin.head.weight.shape == (model.config.vocab_size, model.config.hidden_size)


def test_launches_start_early_where_they_are_asked_to_and_never_the_head_s():
    model = create_model(SHAPES["tiny-gpt2"], dtype=torch.float32, device="cpu")
    early = fused(model, pdl=True)
    assert early.layers[0].qkv.pdl and early.norm.pdl and not early.head.pdl
    assert not fused(model).layers[0].qkv.pdl
    assert not hasattr(model.head, "pdl"), "the model that is viewed stays what it was"
