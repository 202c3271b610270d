"""Log-probabilities on their way to the reader: bytes first, and objects once they are read. No torch here.

With 5 alternatives, the log-probabilities of one token are some twenty Python objects, and 256 sequences sample as many
tokens per step. Neither the engine nor the front end has a use for such objects; a reader makes them, one token after
the other. Each token keeps its pairs of (token id, logarithm) as bytes, just as the device wrote them: first the
sampled token's, then the likeliest tokens', best first. Bytes are quickly cut from a step's result, keep nothing else
of it alive, have a tenth of the objects' size, and cost the garbage collector nothing.
"""

import struct
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import overload

PAIR = struct.Struct("<if")


@dataclass(slots=True)  # not frozen: frozen ones take longer to make, thousands of times per step
class TokenLogprob:
    """The log-probability of a sampled token, and the likeliest tokens at its position, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Logprobs(Ordered[TokenLogprob]):
    """The log-probabilities of some tokens, in order. Reads like a tuple of TokenLogprob. packed: bytes per token."""

    __slots__ = ("packed",)

    def __init__(self, packed: tuple[bytes, ...] = ()) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[TokenLogprob]:
        return map(unpack, self.packed)

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> "Logprobs": ...
    def __getitem__(self, index: int | slice) -> "TokenLogprob | Logprobs":
        return Logprobs(self.packed[index]) if isinstance(index, slice) else unpack(self.packed[index])

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __eq__(self, other: object) -> bool:
        return self.packed == other.packed if isinstance(other, Logprobs) else tuple(self) == other

    def __hash__(self) -> int:
        return hash(self.packed)


NO_LOGPROBS = Logprobs()


def unpack(packed: bytes) -> TokenLogprob:
    (token, chosen), *top = PAIR.iter_unpack(packed)
    return TokenLogprob(token, chosen, tuple(top))
