"""A runner in another process: the tokens of a runner in this one, whatever plans come."""

import random

import pytest

from gradus.execution.remote.service import Service
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from tests.execution.remote.pairs import connected, hello_of, lived, serving
from tests.scheduling.replica import Replica, half_right, nothing, oracle
from tests.scheduling.world import World


@pytest.mark.parametrize(
    ("windows", "drafts", "guess"),
    [((None,), 0, nothing), ((None, 6), 0, nothing), ((None,), 3, oracle), ((None,), 3, half_right)],
)
@pytest.mark.parametrize("lag", [0, 1])
def test_random_work_gets_its_tokens_from_a_runner_in_another_process(tmp_path, windows, drafts, guess, lag):
    for seed in range(6):
        draw = random.Random(seed)
        pages, page_size, slots = draw.randint(8, 24), draw.choice([1, 2, 4]), draw.randint(1, 5)
        replica = Replica(page_size, windows=windows, guess=guess)
        hello = hello_of(pages=pages, page_size=page_size, max_sequences=slots, windows=windows, drafts=drafts)
        listener = serving(tmp_path / "socket", Service(replica, hello))
        world = World(
            pages, page_size, slots, draw.choice([None, 2, 5, 16]), shared=seed % 2 > 0, windows=windows, lag=lag,
            drafting=DraftControl(DraftShapes(drafts, 5), 5, lag=lag, adaptive=False) if drafts else None,
        )  # fmt: skip
        lived(world, connected(listener.path), draw)
        listener.close()
