"""Pages, gathered for copies to host memory and scattered after copies from there."""

import pytest
import torch

from gradus.kernels.rows.pages import BYTES, gather_pages, scatter_pages
from gradus.kernels.rows.reference import gather_pages_reference, scatter_pages_reference

DEPTH, PAGES, COUNT = 3, 9, 4
LARGE = BYTES // 8  # words of a whole block


@pytest.mark.parametrize(
    ("dtype", "words"), [(torch.uint8, 1), (torch.int16, 24), (torch.int32, 64), (torch.int64, LARGE + 8)]
)
def test_pages_are_where_torch_puts_them_and_nothing_else_changes(dtype, words):
    random = torch.Generator().manual_seed(words)
    pool = torch.randint(0, 100, (DEPTH, PAGES, words), generator=random, dtype=dtype)
    staging = torch.randint(0, 100, (COUNT + 1, 5 + DEPTH * words + 2), generator=random, dtype=dtype)
    pages = torch.tensor([7, 1, 8, 2])
    for move, exact in ((gather_pages, gather_pages_reference), (scatter_pages, scatter_pages_reference)):
        found, expected = [(pool.clone(), staging.clone()) for _ in range(2)]
        for (pool_, staging_), way in ((found, move), (expected, exact)):
            way(staging_[:COUNT, 5 : 5 + DEPTH * words].unflatten(1, (DEPTH, words)), pool_, pages)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert not (torch.equal(found[0], pool) and torch.equal(found[1], staging))
