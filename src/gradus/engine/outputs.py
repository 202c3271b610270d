"""What a step has done: a list for its readers, columns for the loop that makes hundreds per step. No torch here."""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gradus.engine.plan import Column
from gradus.engine.sequence import Output, TokenLogprob


@dataclass(slots=True, eq=False)
class Outputs(Ordered[Output]):
    """One token for each decoding sequence, in columns, and an `Output` for all that is more. Reads like a list.

    owners, tokens: of the decodes of a plan. rows: those that sampled a plain token. logprobs: by row.
    others: endings, first tokens, and tokens of sequences that have left their slot.
    """

    owners: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, object))
    tokens: Column = field(default_factory=lambda: np.empty(0, np.int64))
    rows: Column = field(default_factory=lambda: np.empty(0, np.int64))
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    others: list[Output] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows) + len(self.others)

    def __iter__(self) -> Iterator[Output]:
        rows = zip(self.rows.tolist(), self.owners[self.rows], self.tokens[self.rows].tolist(), strict=True)
        for row, owner, token in rows:
            logprobs = (self.logprobs[row],) if row in self.logprobs else ()
            yield Output(owner.request_id, owner.index, (token,), logprobs)
        yield from self.others

    @overload
    def __getitem__(self, index: int) -> Output: ...
    @overload
    def __getitem__(self, index: slice) -> list[Output]: ...
    def __getitem__(self, index: int | slice) -> Output | list[Output]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, like a list


def endings(outputs: Ordered[Output]) -> list[str]:
    """The finish reasons among them. Decodes in columns have none."""
    told = outputs.others if isinstance(outputs, Outputs) else outputs
    return [output.finish_reason for output in told if output.finish_reason is not None]


def token_count(outputs: Ordered[Output]) -> int:
    if isinstance(outputs, Outputs):
        return len(outputs.rows) + sum([len(output.tokens) for output in outputs.others])
    return sum([len(output.tokens) for output in outputs])
