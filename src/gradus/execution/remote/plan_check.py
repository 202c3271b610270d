"""Checks a plan on its arrival: every number in it, against the runner's limits and against the plans before it.

The runner indexes tables and memory with these numbers, without another look. After a check, every slot that the plan
runs has an owner, every position lies on a page, and every page, slot and token exists. No torch here.
"""

from collections.abc import Sequence

import numpy as np

from gradus.cache import TableChange
from gradus.engine.plan import Admission, Column, Decodes, Plan, Scores, Span
from gradus.engine.request import MAX_EOS_TOKENS, MAX_LOGPROBS, MAX_N, MAX_STOP_TOKENS
from gradus.execution.remote.messages import Hello, MessageError


class PlanCheck:
    """Follows the plans of one connection. used: the pages that they have given to slots.

    After a MessageError, check no other plan.
    """

    def __init__(self, hello: Hello) -> None:
        self.used: set[int] = set()
        self._hello, self._groups, self._longest = hello, len(hello.windows), hello.longest_table
        self._owned = np.zeros(hello.max_sequences, np.bool_)
        self._room = np.zeros(hello.max_sequences, np.int64)  # by slot: the positions of its pages
        self._stored = np.zeros(hello.max_sequences, np.int64)  # by slot: the positions that it may have stored

    def check(self, plan: Plan) -> None:
        """Lower the limits of decodes to the slots' pages. Raises MessageError, in one line, for the first number that
        is wrong."""
        hello = self._hello
        _within("a wiped page", plan.wiped, 1, hello.pages)
        for admission in plan.admissions:
            self._admit(admission)
        self._check_decodes(plan.decodes)
        for span in plan.spans:
            self._check_span(span)
        slots = [span.slot for span in plan.spans]
        if slots:
            slots += plan.decodes.slots.tolist()
            if len(set(slots)) < len(slots):
                raise MessageError("a plan runs a slot twice")
        if plan.tokens > hello.step_tokens:
            raise MessageError(f"a plan has {plan.tokens} tokens, and a step at most {hello.step_tokens}")

    # -- a new owner ---------------------------------------------------------------------------------------------------

    def _admit(self, admission: Admission) -> None:
        hello, request, slot = self._hello, admission.request, admission.slot
        _within("a slot", [slot], 0, hello.max_sequences - 1)
        _within("a sample's index", [admission.index], 0, MAX_N - 1)
        _within("the length of a prompt", [len(request.prompt)], 1, hello.context_length)
        _within("the length of a sequence", [len(admission.tokens)], 1, hello.context_length)
        self._check_tokens("a prompt's token", admission.tokens)
        self._check_tokens("a stop token", [*request.stop_ids])
        self._check_tokens("a biased token", [*request.params.logit_bias])
        _within("the number of stop tokens", [len(request.stop_ids)], 0, MAX_STOP_TOKENS + MAX_EOS_TOKENS)
        _within("a seed", [request.seed], 0, 2**63 - 1)
        if request.params.structured is not None and not hello.structured:
            raise MessageError("a plan asks for a grammar, and this runner keeps to none")
        self._owned[slot], self._room[slot], self._stored[slot] = True, 0, 0

    def _check_tokens(self, what: str, tokens: Sequence[int]) -> None:
        _within(what, tokens, 0, self._hello.vocab_size - 1)

    # -- decodes -------------------------------------------------------------------------------------------------------

    def _check_decodes(self, decodes: Decodes) -> None:
        slots, drafts = decodes.slots, decodes.drafts
        count = len(slots)
        if len(decodes.starts) != count or len(decodes.limits) != count or len(drafts) not in (0, count):
            raise MessageError("the columns of a plan's decodes differ in length")
        if count:
            _upto("a slot", slots, self._hello.max_sequences - 1)
            if np.bincount(slots).max() > 1:
                raise MessageError("a plan decodes a slot twice")
        for slot, change in decodes.pages:
            self._update(slot, change)
        if not count:
            return
        if not (self._stored[slots] > 0).all():
            raise MessageError("a plan decodes a slot whose prompt has not run")
        _upto("a decode's start", decodes.starts, self._hello.context_length - 1)
        if len(drafts):
            _upto("a number of drafts", drafts, self._hello.drafts)
        most = int(decodes.limits.max())
        if most >= self._hello.context_length:
            _refuse("the positions that a decode may store", most, 0, self._hello.context_length - 1)
        decodes.limits = np.minimum(decodes.limits, self._room[slots])  # without drafts, an engine names the end alone

    # -- spans ---------------------------------------------------------------------------------------------------------

    def _check_span(self, span: Span) -> None:
        hello, slot = self._hello, span.slot
        _within("a slot", [slot], 0, hello.max_sequences - 1)
        if span.pages is not None:
            self._update(slot, span.pages)
        if not self._owned[slot]:
            raise MessageError(f"a plan runs slot {slot}, which has no owner")
        _within("the length of a span", [len(span.tokens)], 1, hello.context_length)
        end = span.start + len(span.tokens)
        _within("a position", [span.start, end - 1], 0, min(hello.context_length, int(self._room[slot])) - 1)
        _within("the rows with logits of a span", [span.logits], 0, 1)
        self._check_tokens("a token", span.tokens)
        if span.scores is not None:
            self._check_scores(span.scores, len(span.tokens))
        if span.logits:
            self._stored[slot] = end

    def _check_scores(self, scores: Scores, count: int) -> None:
        if not self._hello.prompt_logprobs:
            raise MessageError("a plan asks for a prompt's log-probabilities, which this runner does not report")
        _within("the number of scored tokens", [len(scores.targets)], 1, count)
        _within("the number of likeliest tokens", [scores.top], 0, MAX_LOGPROBS)
        self._check_tokens("a scored token", scores.targets)

    # -- block tables --------------------------------------------------------------------------------------------------

    def _update(self, slot: int, change: TableChange) -> None:
        """Take a change of a slot's block tables: the only check that a step makes for many slots one by one."""
        kept, tables = change
        if not (0 <= slot < self._hello.max_sequences and self._owned[slot]):
            raise MessageError(f"a plan gives pages to slot {slot}, which has no owner")
        new = len(tables[0]) if tables else 0
        if len(tables) != self._groups or (len(tables) > 1 and any(len(each) != new for each in tables)):
            raise MessageError(f"a block table's change must have equal parts for {self._groups} layer groups")
        had = int(self._room[slot]) // self._hello.page_size
        if not 0 <= kept <= had:
            _refuse("the kept pages of a block table", kept, 0, had)
        if kept + new > self._longest:
            _refuse("the length of a block table", kept + new, 0, self._longest)
        for pages in tables:
            if pages and not 0 <= min(pages) <= max(pages) <= self._hello.pages:
                _within("a page", pages, 0, self._hello.pages)
            self.used.update(pages)
        self._room[slot] = (kept + new) * self._hello.page_size


def _within(what: str, numbers: Sequence[int], least: int, most: int) -> None:
    if numbers and not least <= min(numbers) <= max(numbers) <= most:
        _refuse(what, min(numbers) if min(numbers) < least else max(numbers), least, most)


def _upto(what: str, column: Column, most: int) -> None:
    if column.view(np.uint64).max() > most:  # where a negative number is a large one: one pass finds both
        low, high = int(column.min()), int(column.max())
        _refuse(what, low if low < 0 else high, 0, most)


def _refuse(what: str, got: int, least: int, most: int) -> None:
    raise MessageError(f"{what} must be between {least} and {most}, got {got}")
