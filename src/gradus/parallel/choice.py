"""Choose which sums of the ranks go through inboxes, and which through NCCL: measured where they will run.

Through inboxes, each rank receives everything from every other rank, in one launch. With many ranks
or rows, NCCL's ring moves less, but it takes more steps. The break-even point depends on the number of ranks and on how
the GPUs are linked, so rank 0 races them when the model is loaded, and all ranks follow its result.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gradus.execution.gpu.capturing import Recorder, replay_ms
from gradus.kernels.rows.summed_norm import summed
from gradus.parallel.exchange import Exchange

log = logging.getLogger(__name__)

FEWEST_ROWS = 16
CALLS = 8  # sums in a graph: steps are replayed from graphs, so the host's time for a launch must not count

Race = Callable[[int], Sequence[float]]
"""Times a sum of a number of rows: through inboxes, and through NCCL."""


def choose(exchange: Exchange, width: int, dtype: torch.dtype) -> None:
    """Find out up to how many rows of `width` a sum is faster through inboxes. All ranks call it together."""
    group, inboxes = exchange.group, exchange.inboxes
    if inboxes is None:
        return
    recorder = Recorder(group.device)

    def race(rows: int) -> Sequence[float]:
        x = torch.zeros(rows, width, dtype=dtype, device=group.device)
        ways = partial(summed, x, inboxes), partial(group.sum, x)
        captured = [recorder.record(rows, partial(_repeated, way)) for way in ways]
        took = group.agree([replay_ms(each.graph) / CALLS for each in captured])
        log.debug("a sum of %d rows: %.4f ms through inboxes, %.4f ms through NCCL", rows, *took)
        return took

    exchange.few = halved(inboxes.rows, race)
    log.info("sums of up to %d rows go through inboxes, larger ones through NCCL", exchange.few)


def _repeated(way: Callable[[], Tensor]) -> list[Tensor]:
    return [way() for _ in range(CALLS)]


def halved(rows: int, race: Race) -> int:
    """Halve `rows` until inboxes win. Returns 0 if they lose at FEWEST_ROWS too."""
    while rows >= FEWEST_ROWS:
        inboxes, nccl = race(rows)
        if inboxes <= nccl:
            return rows
        rows //= 2
    return 0
