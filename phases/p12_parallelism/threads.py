"""Ranks as threads of this process: for tests and short examples, which need no second core to be right."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.place import Place

Result = TypeVar("Result")
PATIENCE_S = 10.0


def on_all_ranks(
    compute: Callable[[Any], Result], parts: int = 1, stages: int = 1, make: type[Exchange] = Exchange
) -> list[Result]:
    """Call compute(exchange) on every rank at once, and return the results in the order of the ranks.

    make: the class of the exchanges. Raises the first error of any rank: those that follow are of ranks that have
    lost it.
    """
    exchanges: dict[int, Exchange] = {}  # kept until all have ended: one may still read what another has sent
    errors: list[Exception] = []

    def run(rank: int) -> Result | None:
        try:
            exchanges[rank] = make(path, Place(rank, parts, stages), PATIENCE_S)
            return compute(exchanges[rank])
        except Exception as error:
            errors.append(error)
            if rank in exchanges:
                exchanges[rank].close()
            return None

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(parts * stages) as pool:
        path = str(Path(folder) / "meeting")
        results = list(pool.map(run, range(parts * stages)))
    if errors:
        raise errors[0]
    return results  # type: ignore[return-value]
