"""Two processes meet by keys that torch numbers, though one of them has met others before."""

import threading

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from torch import distributed as dist

from gradus.parallel.symmetric import Counted


def test_ranks_that_have_exchanged_before_meet_new_ones(tmp_path):
    got: dict[int, list[bytes]] = {}

    def rank(own: int, numbers: list[int]) -> None:
        """Exchange as torch's symmetric memory does, through a prefix in C++."""
        counted = Counted(dist.FileStore(str(tmp_path / "store"), 2))
        store = dist.PrefixStore("symmetric", counted)
        for turn, number in enumerate(numbers):
            keys = [f"CUDASymmetricMemory/{number}/{each}" for each in range(2)]
            store.set(keys[own], f"{own} in turn {turn}")
            store.wait([keys[1 - own]])
            got.setdefault(own, []).append(store.get(keys[1 - own]))

    ranks = [threading.Thread(target=rank, args=(0, [7, 8])), threading.Thread(target=rank, args=(1, [0, 1]))]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(20)
    assert got == {0: [b"1 in turn 0", b"1 in turn 1"], 1: [b"0 in turn 0", b"0 in turn 1"]}
