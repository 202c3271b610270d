"""Memory that the GPUs of one host write into each other's: the inboxes of `kernels/rows/summed_norm.py`.

Every rank allocates a tensor of the same shape, and maps the others' into its own address space
(`torch.distributed._symmetric_memory`, over NVLink or PCIe). Multicast, which adds up inside the switch, is not used.
"""

import logging
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from gradus.kernels.rows.summed_norm import Inboxes
from gradus.parallel.group import Group

log = logging.getLogger(__name__)

MOST_ROWS = 256
"""Rows that inboxes hold. On two H200, a sum of 256 rows of 4,096 takes half as long as through NCCL; up to how many go
through them is measured (`choice.py`)."""


def inboxes_of(group: Group, width: int, dtype: torch.dtype) -> Inboxes | None:
    """Make this rank's inboxes, for rows of `width` values. All ranks call it together, and all get some or none.

    Returns None where the GPUs cannot reach each other's memory, or values have no 16 or 32 bits.
    """
    if not _all(group, dtype.itemsize in (2, 4) and width * dtype.itemsize % 4 == 0 and _reachable(group)):
        log.info("sums of few rows go through NCCL: the GPUs do not reach each other's memory")
        return None
    shape = (2, group.size, MOST_ROWS, width * dtype.itemsize // 4)
    try:
        words, addresses, mapped = _shared(group, shape)
    except (RuntimeError, AttributeError) as error:
        log.warning("sums of few rows go through NCCL: no symmetric memory (%s)", error)
        words, addresses, mapped = None, [], None
    if not _all(group, words is not None) or words is None:
        return None
    words.zero_()
    torch.cuda.synchronize(group.device)
    _all(group, True)  # nothing may arrive before it is zero
    return Inboxes(
        group.rank,
        words,
        torch.tensor(addresses, device=group.device),
        torch.zeros(MOST_ROWS, dtype=torch.int32, device=group.device),
        torch.zeros(1, dtype=torch.int32, pin_memory=True),
        mapped,
    )


def _shared(group: Group, shape: tuple[int, ...]) -> tuple[Tensor, list[int], object]:
    """Allocate int64 memory, and map every rank's. Returns this rank's, the addresses of all, and what keeps them
    mapped."""
    from torch._C import _distributed_c10d
    from torch.distributed import _symmetric_memory as symmetric

    c10d: Any = _distributed_c10d  # its types differ between versions
    name = group.path
    file = Counted(c10d.FileStore(f"{group.path}-symmetric", group.size))
    store = c10d.PrefixStore("symmetric", file)
    # torch finds the group by its name, in the one way or the other, depending on its version
    known = c10d.ProcessGroup(store, group.rank, group.size)
    known._set_group_name(name)
    c10d._register_process_group(name, known)
    c10d._SymmetricMemory.set_group_info(name, group.rank, group.size, store)
    words = symmetric.empty(shape, dtype=torch.int64, device=group.device)
    handle = c10d._SymmetricMemory.rendezvous(words, name)
    addresses = [handle.get_buffer(rank, shape, torch.int64).data_ptr() for rank in range(group.size)]
    return words, addresses, (handle, known, file)


class Counted(Store):
    """A store in which torch's exchanges of addresses are numbered from 0.

    Torch numbers them by process, and every rank waits for the others' keys with its own numbers. Rank 0 may have
    loaded models before; the other ranks' processes are new, and would wait for each other for ever.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._turns: dict[str, int] = {}

    def _key(self, key: str) -> str:
        """Replace the number in "prefix/number/rank", which are the keys of an exchange."""
        head, number, rank = key.rsplit("/", 2)
        return f"{head}/{self._turns.setdefault(number, len(self._turns))}/{rank}"

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._store.wait([self._key(key) for key in keys])


def _reachable(group: Group) -> bool:
    own = group.device.index
    others = (number for number in range(group.size) if number != own)  # rank i has GPU i
    return all(torch.cuda.can_device_access_peer(own, number) for number in others)


def _all(group: Group, fine: bool) -> bool:
    """Whether it is so on every rank."""
    return bool(group.gather(torch.tensor([int(fine)], device=group.device)).min())
