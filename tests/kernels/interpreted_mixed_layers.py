"""Paged attention's kernels on layers of different heads that share pages, and on layers that read another's."""

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.kernels.rows.passage import NOTHING
from gradus.kernels.rows.rope_store import rope_store
from gradus.kernels.step.places import places
from gradus.quantization.kv import rounded
from tests.attention.mixed import MIXED, MixedPages, near

STEPS = [[(2, 9), (0, 5)], [(0, 1), (1, 3), (2, 1)], [(2, 1), (1, 1), (0, 1)]]
SOME = {
    "narrow full layers": range(5),  # the two full layers share a strip
    "neither divides": range(8),  # three full layers have a strip, two with a window each another
    "sinks": range(2),
}


@pytest.mark.parametrize(
    ("name", "backend", "kind"),
    [
        ("narrow full layers", TritonPagedAttention, PagedStorage),
        ("narrow full layers", GraphPagedAttention, Fp8Storage),
        ("wide full layers", GraphPagedAttention, PagedStorage),
        ("neither divides", TritonPagedAttention, PagedStorage),
        ("sinks", TritonPagedAttention, PagedStorage),
        ("sinks", GraphPagedAttention, Fp8Storage),
    ],
)
def test_kernels_attend_as_the_formula_says(name, backend, kind):
    """They store keys and values in the layer's own pages, in a launch before attention, or decodes in its own."""
    config = MIXED[name].stage(SOME[name]) if name in SOME else MIXED[name]
    storage = kind(config, 100, 4, torch.float32, torch.device("cpu"))
    attention, at_once = backend(config, storage, 4), []

    def attend(layer, q, k, v, sinks):
        if k is None:
            return attention.attend(layer, q, None, None, sinks)
        product = torch.cat([each.flatten(1) for each in (q, k, v)], dim=1)
        if attention.fuses_rope:
            at_once.append(layer)
            return attention.store_and_attend(layer, product, NOTHING, sinks)
        *pages, rows, scales = attention.destination(layer)
        return attention.attend_stored(layer, rope_store(product, *pages, rows, scales=scales), sinks)

    pages, kept = MixedPages(config, storage, attention, attend), rounded if kind is Fp8Storage else torch.clone
    for spans in STEPS:
        assert near(pages.step(*spans), pages.right(*spans, kept=kept), tolerance=1e-4)
        for slot, _ in spans:
            pages.give_back(slot)
    assert at_once == [layer for layer in range(config.num_layers) if config.stores_kv(layer)], "the last step's"
    newest = torch.tensor([len(pages.history[slot][0][0]) for slot in range(3)], dtype=torch.int32)
    found = places(torch.arange(3, dtype=torch.int32), newest, attention.tables, 4)
    rows = [attention._rows(group, torch.arange(3), newest.long() - 1) for group in range(len(storage.groups))]
    assert torch.equal(found, torch.stack(rows))
