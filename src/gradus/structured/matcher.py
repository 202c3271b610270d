"""One answer's place in its grammar: the tokens so far, and what may come next.

A row of legal tokens is int32 [words], token t being bit t % 32 of word t // 32. It has exactly the bits of tokens that
may come next: those that the grammar allows, and, where the grammar accepts, those that end the answer. Once one of
these has come, nothing but them is legal.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gradus.structured.library import Failed, guarded, one_line
from gradus.structured.vocabulary import Row, Vocabulary, row_words


class Matcher:
    """Follows one answer through its grammar. One thread at a time.

    fault: why the answer can't go on, in one line, or None. A matcher with a fault stays as it is, and allows nothing.
    """

    def __init__(self, inner: Any, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        """Take ownership of `inner`, an LLMatcher. ends: the tokens that end the answer."""
        self.fault: str | None = None
        self._inner = inner
        self._vocabulary = vocabulary
        self._ends = frozenset(end for end in ends if 0 <= end < vocabulary.vocab_size)
        self._ended = False  # an end was accepted: the library never sees one
        self._words = row_words(vocabulary.vocab_size)
        self._end_row, self._other_row = vocabulary.rows_of(self._ends)

    @classmethod
    def broken(cls, reason: str, vocab_size: int) -> "Matcher":
        """Make a matcher with this fault, for an answer that can't begin. It needs no index of the vocabulary."""
        matcher = cls(None, Vocabulary.missing(vocab_size), ())
        matcher.fault = reason
        return matcher

    # -- moving --------------------------------------------------------------------------------------------------------

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance. Returns whether all tokens were legal; if not, `fault` says which was not, and nothing is raised."""
        try:
            with guarded():
                for token in tokens:
                    if self.fault or not self._accept(token):
                        break
        except Failed as error:
            self._fail(str(error))
        return self.fault is None

    def _accept(self, token: int) -> bool:
        if token in self._ends:
            legal = self.accepting
            self._ended |= legal
        else:
            legal = not self._ended and self._is_known(token) and self._inner.try_consume_tokens([token]) == 1
        if not legal:
            reason = one_line(self._inner.get_error()) if self._inner.is_error() else ""
            self._fail(reason or f"token {token} is not legal here")
        return legal

    # -- what is legal -------------------------------------------------------------------------------------------------

    def fill(self, row: Row) -> None:
        """Write the legal tokens. row: int32 [row_words(vocab_size)]."""
        self.fill_drafts(row[None], ())

    def fill_drafts(self, rows: Row, drafts: Sequence[int]) -> None:
        """Write the legal tokens at every draft's place, and leave the matcher where it was.

        rows: int32 [1 + k, row_words(vocab_size)], row j being what is legal behind drafts[:j]. Where a draft is
        illegal, the rows behind it repeat the last one before it: no token there will be used.
        """
        known = self.known(drafts)
        raw = np.zeros((1 + len(known), self.raw_words), np.int32)
        if self.asks_library:
            try:
                with guarded():
                    self._compute(raw, known)
            except Failed as error:
                self._fail(str(error))
        self.settle(rows, raw, drafts)

    def _compute(self, raw: Row, drafts: Sequence[int]) -> None:
        one = raw.strides[0]
        if drafts:
            self._inner.unsafe_compute_mask_ptr_with_draft_token(raw.ctypes.data, one, list(drafts))
        else:
            self._inner.unsafe_compute_mask_ptr(raw.ctypes.data, one)

    def known(self, drafts: Sequence[int]) -> list[int]:
        """Return the drafts before the first that the library may not see: an end, or no token at all."""
        if self._ended:
            return []
        first = (place for place, token in enumerate(drafts) if token in self._ends or not self._is_known(token))
        return list(drafts[: next(first, len(drafts))])

    def settle(self, rows: Row, raw: Row, drafts: Sequence[int]) -> None:
        """Turn the library's rows into ours, once it has filled them.

        raw: int32 [1 + len(known(drafts)) or more, words of the library]. Called by `fill_drafts` and by MaskThreads.
        """
        try:
            with guarded():
                if self.fault is None and self._inner.is_error():
                    self._fail(one_line(self._inner.get_error()))
                if self.fault is None:
                    self._settle(rows, raw, drafts)
        except Failed as error:
            self._fail(str(error))
        if self.fault is not None:
            rows[:] = 0

    def _settle(self, rows: Row, raw: Row, drafts: Sequence[int]) -> None:
        ended = self._ended
        for place in range(1 + len(drafts)):
            if place:
                token = drafts[place - 1]
                if not self._is_known(token) or not rows[place - 1, token >> 5] >> (token & 31) & 1:
                    rows[place:] = rows[place - 1]
                    return
                ended |= token in self._ends
            if ended:
                rows[place] = self._end_row
            else:
                self._settle_row(rows[place], raw[place], drafts[:place])

    def _settle_row(self, row: Row, raw: Row, before: Sequence[int]) -> None:
        end = self._vocabulary.end
        accepts = raw[end >> 5] >> (end & 31) & 1  # before it is overwritten: the rows may be the library's own
        np.bitwise_and(raw[: self._words], self._other_row, out=row)
        if accepts:
            if row.any() or self._accepts_behind(before):  # the library also answers "the end" where nothing is legal
                row |= self._end_row
            else:
                self._fail("the grammar allows no token here")
        elif not row.any():
            self._fail("the grammar allows no token here, except for stop tokens")

    def _accepts_behind(self, drafts: Sequence[int]) -> bool:
        if not drafts:
            return bool(self._inner.is_accepting())
        ahead = self._inner.deep_copy()
        return ahead.try_consume_tokens(list(drafts)) == len(drafts) and bool(ahead.is_accepting())

    @staticmethod
    def settle_all(matchers: Sequence["Matcher"], rows: Row, raw: Row) -> None:
        """Do as `settle` does for answers without drafts: those with the same ends at once.

        rows: int32 [M, row_words(vocab_size)]; raw: int32 [M, words of the library], or `rows` itself. What a grammar
        that neither accepts nor allows a token comes to is left to the draw, which finds none.
        """
        first = matchers[0]
        if any(each._end_row is not first._end_row or each.fault or each._inner.is_error() for each in matchers):
            for each, row, found in zip(matchers, rows, raw, strict=True):
                each.settle(row[None], found[None], ())
            return
        end = first._vocabulary.end
        accepting = np.flatnonzero(raw[:, end >> 5] >> (end & 31) & 1).tolist()
        for place in accepting:
            matchers[place].settle(rows[place, None], raw[place, None], ())
        others = np.setdiff1d(np.arange(len(rows)), accepting) if accepting else slice(None)
        if raw is not rows:
            rows[others] = raw[others, : rows.shape[1]]
        changed = np.flatnonzero(first._other_row != -1)  # a few words: those of ends and padding
        for word in changed.tolist():
            rows[others, word] &= first._other_row[word]

    @property
    def masks(self) -> bool:
        """Whether a token may be illegal here. Otherwise a draw needs no row."""
        return True

    def notices(self, token: int) -> bool:
        """Whether the token has to be accepted here; otherwise the matcher stays as it is."""
        return True

    # -- for MaskThreads -----------------------------------------------------------------------------------------------

    @property
    def inner(self) -> Any:
        """The library's matcher."""
        return self._inner

    def takes(self, token: int) -> bool:
        """Whether the library decides about this token: not about an end, nor where the answer has ended or failed."""
        return self.asks_library and token not in self._ends and self._is_known(token)

    def refuse(self, token: int) -> None:
        """Note that the library did not take a token."""
        try:
            with guarded():
                reason = one_line(self._inner.get_error()) if self._inner.is_error() else ""
        except Failed as error:
            reason = str(error)
        self._fail(reason or f"token {token} is not legal here")

    @property
    def raw_words(self) -> int:
        """Words in a row of the library's."""
        return self._vocabulary.words

    def in_threads(self, drafts: Sequence[int]) -> bool:
        """Whether the library's threads may fill the rows behind these drafts."""
        return self.asks_library

    @property
    def asks_library(self) -> bool:
        """Whether rows come from the library: not those of an answer that has ended or failed."""
        return self.fault is None and not self._ended

    # -- state ---------------------------------------------------------------------------------------------------------

    def forced(self, limit: int) -> list[int]:
        """List up to `limit` tokens that the grammar leaves no choice about, from here on.

        The bytes are the only ones that the grammar allows, and the tokens are how the tokenizer writes them, up to the
        last one that could not be longer. Rows allow these tokens and no other spelling, so as drafts they are accepted
        at any temperature.
        """
        if self.fault or self._ended:
            return []
        with suppress(Failed), guarded():
            return self.known(self._inner.compute_ff_tokens())[:limit]
        return []

    def legal(self, drafts: Sequence[int]) -> list[int]:
        """Cut the drafts before the first token that is not legal, or that ends the answer."""
        known = [] if self.fault else self.known(drafts)
        if not known:
            return []
        with suppress(Failed), guarded():
            return known[: self._inner.validate_tokens(known)]
        return []

    @property
    def accepting(self) -> bool:
        """Whether the answer may end here."""
        if self.fault:
            return False
        with suppress(Failed), guarded():
            return self._ended or bool(self._inner.is_accepting())
        return False

    def _is_known(self, token: int) -> bool:
        return 0 <= token < self._vocabulary.vocab_size and token != self._vocabulary.end

    def _fail(self, reason: str) -> None:
        self.fault = self.fault or reason or "the grammar's matcher failed without a reason"
