"""The outputs of a step: a list to its readers, columns to the loop that makes hundreds per step. No torch here."""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs
from gradus.engine.plan import Column
from gradus.engine.sequence import Output


@dataclass(slots=True, eq=False)
class Outputs(Ordered[Output]):
    """The tokens of decoding sequences, in columns, and an `Output` for everything else. Reads like a list.

    owners, tokens [B, width]: of a plan's decodes, as in Sampled. exceptional: the rows, ascending, that did not
    just sample plain tokens; their outputs are in others. logprobs: as in Sampled.
    others: endings, first tokens, and tokens of sequences that have left their slot.
    """

    owners: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, object))
    tokens: Column = field(default_factory=lambda: np.empty((0, 1), np.int64))
    exceptional: list[int] = field(default_factory=list)
    logprobs: Ordered[bytes] = ()
    others: list[Output] = field(default_factory=list)

    def __len__(self) -> int:
        return self.plain + len(self.others)

    @property
    def plain(self) -> int:
        """The number of sequences that sampled plain tokens."""
        return len(self.owners) - len(self.exceptional)

    @property
    def plain_tokens(self) -> int:
        """The number of plain tokens."""
        if self.tokens.shape[1] == 1:
            return self.plain
        tokens = self.tokens >= 0
        return int(np.count_nonzero(tokens)) - int(np.count_nonzero(tokens[self.exceptional]))

    def columns(self) -> tuple[NDArray[np.object_], Column]:
        """Return the owners [P] and the tokens [P, width] of the sequences that sampled plain tokens."""
        if not self.exceptional:
            return self.owners, self.tokens
        return np.delete(self.owners, self.exceptional), np.delete(self.tokens, self.exceptional, axis=0)

    def __iter__(self) -> Iterator[Output]:
        rows = self.plain_rows()
        tokens = self._tokens_of(rows)
        logprobs = self._logprobs_of(rows, tokens) if self.logprobs else [NO_LOGPROBS] * len(rows)
        for owner, sampled, told in zip(self.owners[rows].tolist(), tokens, logprobs, strict=True):
            yield Output(owner.request_id, owner.index, sampled, told)
        yield from self.others

    def plain_rows(self) -> Column:
        """List the rows that sampled plain tokens."""
        rows = np.arange(len(self.owners))
        return np.delete(rows, self.exceptional) if self.exceptional else rows

    def _tokens_of(self, rows: Column) -> list[tuple[int, ...]]:
        """Return the tokens that each row sampled, without the marks for missing ones."""
        tokens = self.tokens[rows]
        if (tokens >= 0).all():  # as without drafts
            return list(zip(*tokens.T.tolist(), strict=True))
        return [tuple([token for token in sampled if token >= 0]) for sampled in tokens.tolist()]

    def _logprobs_of(self, rows: Column, tokens: list[tuple[int, ...]]) -> list[Logprobs]:
        firsts = (rows * self.tokens.shape[1]).tolist()
        packed = [tuple(self.logprobs[at : at + len(each)]) for at, each in zip(firsts, tokens, strict=True)]
        return [Logprobs(each) if any(each) else NO_LOGPROBS for each in packed]

    @overload
    def __getitem__(self, index: int) -> Output: ...
    @overload
    def __getitem__(self, index: slice) -> list[Output]: ...
    def __getitem__(self, index: int | slice) -> Output | list[Output]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, like a list


def endings(outputs: Ordered[Output]) -> list[Output]:
    """List the last outputs of sequences. Decodes in columns have none."""
    others = outputs.others if isinstance(outputs, Outputs) else outputs
    return [output for output in others if output.finish_reason is not None] if others else []


def token_count(outputs: Ordered[Output]) -> int:
    if isinstance(outputs, Outputs):
        plain, outputs = outputs.plain_tokens, outputs.others
        return plain + sum([len(output.tokens) for output in outputs]) if outputs else plain
    return sum([len(output.tokens) for output in outputs])
